def initialize_layerwise_reload(model):
    model.reloads.append("begun")


def finalize_layerwise_reload(model, model_config):
    model.reloads.append("ended")
