import os
import re

_BAR_FORMAT = "{desc}: {percentage:3.0f}% Completed | {n_fmt}/{total_fmt}\n"


def _natural_sort_key(filepath):
    return [int(s) if s.isdigit() else s
            for s in re.split(r"(\d+)", os.path.basename(filepath))]


def enable_tqdm(use_tqdm_on_load):
    return use_tqdm_on_load


def filter_mm_encoder_only_safetensors_files(
    hf_weights_files, hf_folder, index_file, language_model_prefixes,
    weights_mapper=None
):
    return [one for one in hf_weights_files if "encoder" in one]


def filter_safetensors_files_by_weight_name(hf_weights_files, is_unused_weight):
    return [one for one in hf_weights_files
            if not is_unused_weight(os.path.basename(one))]
