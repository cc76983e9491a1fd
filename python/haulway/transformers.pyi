from typing import Any, Literal

__all__ = ["CheckpointCallback"]

class CheckpointCallback:
    def __new__(cls, *arguments: Any, **options: Any) -> CheckpointCallback: ...
    def __init__(
        self, *, durability: Literal["full", "none"] | None = None,
    ) -> None: ...
    def on_save(
        self, args: Any, state: Any, control: Any, **others: Any,
    ) -> None: ...
