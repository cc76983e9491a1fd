import re


def should_skip_weight(weight_name, local_expert_ids):
    found = re.search(r"\.experts\.(\d+)\.", weight_name)
    return (local_expert_ids is not None and found is not None
            and int(found[1]) not in local_expert_ids)
