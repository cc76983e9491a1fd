"""The code that uses torch. Imported only when torch is needed."""

import logging  # noqa: F401  # torch imports it, and it locks itself at a fork.

from .._importing import importing

importing.before_others()
