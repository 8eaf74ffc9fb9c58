"""Makes a schema of this folder from a project's CustomResourceDefinition, for tests/test_kubernetes.py.

  make.py CRD.yaml PROJECT VERSION      writes KIND.json: {source, kind, versions: {apiVersion: schema}}

Descriptions are left out. What Kubernetes prunes is refused: an object with named properties has no others, unless its schema says
that unknown fields are preserved. Templates of pods are left open: the test validates them as Kubernetes' own PodTemplate.
"""
import json
import pathlib
import sys

import yaml


def strict(schema):
    """Returns the schema in JSON Schema's terms."""
    if not isinstance(schema, dict):
        return schema
    if "containers" in schema.get("properties", {}).get("spec", {}).get("properties", {}):
        return {"type": "object"}
    made = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-") and key != "description"}
    for key in ("properties", "additionalProperties", "items"):
        if key == "properties" and key in made:
            made[key] = {name: strict(value) for name, value in made[key].items()}
        elif isinstance(made.get(key), dict):
            made[key] = strict(made[key])
    for key in ("allOf", "anyOf", "oneOf"):
        # These only restrict what is declared beside them.
        if key in made:
            made[key] = [{name: value for name, value in branch.items() if name != "description"} for branch in made[key]]
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in made and "additionalProperties" not in made and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


def main():
    path, project, version = sys.argv[1:]
    crd = yaml.safe_load(pathlib.Path(path).read_text())["spec"]
    versions = {}
    for served in crd["versions"]:
        schema = strict(served["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        versions[f"{crd['group']}/{served['name']}"] = schema
    kind = crd["names"]["kind"]
    made = {"source": f"https://github.com/{project}, {version}", "kind": kind, "versions": versions}
    target = pathlib.Path(__file__).parent / f"{kind}.json"
    target.write_text(json.dumps(made, separators=(",", ":"), sort_keys=True) + "\n")


main()
