from .base_loader import BaseModelLoader

LOADERS = {"runai_streamer": BaseModelLoader}
CALLS = []


def register_model_loader(load_format: str):
    def register(loader):
        if not issubclass(loader, BaseModelLoader):
            raise ValueError("expected a BaseModelLoader")
        CALLS.append(load_format)
        LOADERS[load_format] = loader
        return loader

    return register


def get_model_loader(load_config):
    return LOADERS[load_config.load_format](load_config)
