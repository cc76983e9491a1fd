import abc


class BaseModelLoader(abc.ABC):
    def __init__(self, load_config):
        self.load_config = load_config

    @abc.abstractmethod
    def download_model(self, model_config) -> None: ...

    @abc.abstractmethod
    def load_weights(self, model, model_config) -> None: ...
