"""A list of a wheel's linked components, as CycloneDX 1.6 in JSON."""

import json
import uuid


def _component(name, version, licence, purl):
    return {"type": "library", "bom-ref": purl, "name": name, "version": version,
            "licenses": [{"expression" if " " in licence else "license":
                          licence if " " in licence else {"id": licence}}],
            "purl": purl}


def bill_of(version, libraries, extra=()):
    """Returns the list as text: Haulway itself, and each Library with its
    source package. Each row of `extra` begins with name, version, licence and
    purl."""
    own = f"pkg:pypi/haulway@{version}"
    components = []
    for library in libraries:
        debian = library.version.replace(":", "%3A").replace("+", "%2B")
        components.append(_component(
            library.name, library.upstream, library.licence,
            f"pkg:generic/{library.name}@{library.upstream}"))
        components[-1]["properties"] = [{
            "name": "haulway:source-package",
            "value": f"pkg:deb/debian/{library.source}@{debian}?arch=source"}]
    components += [_component(*row[:4]) for row in extra]
    components.sort(key=lambda one: one["name"])
    refs = [one["bom-ref"] for one in components]
    # The same content gets the same number.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([own, components]))
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {
            "type": "library", "bom-ref": own, "name": "haulway",
            "version": version, "licenses": [{"license": {"id": "Apache-2.0"}}],
            "purl": own}},
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": refs},
                         *({"ref": ref} for ref in refs)],
    }
    return json.dumps(bill, indent=1, sort_keys=True) + "\n"
