"""The Kubernetes objects of deploy/: Kustomize's and the Helm chart's are valid, are the same, and name what the server has."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import httpx
import jsonschema
import kubernetes_validate
import pytest
import yaml

from daemon import environment, gpu_exposition, program, run
from tls_clients import Authority

pytestmark = pytest.mark.deploy

ROOT = pathlib.Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
KUSTOMIZE = DEPLOY / "kubernetes"
CHART = DEPLOY / "helm" / "millrace"
KUSTOMIZATIONS = sorted(path.parent.relative_to(KUSTOMIZE).as_posix() for path in KUSTOMIZE.rglob("kustomization.yaml"))
COMPONENTS = [name for name in KUSTOMIZATIONS if name.startswith("components/")]
OVERLAYS = [name for name in KUSTOMIZATIONS if name.startswith("overlays/")]
SCHEMAS = {schema["kind"]: schema["versions"] for schema in map(json.loads, (path.read_text() for path in (ROOT / "tests/crds").glob("*.json")))}
# preStop's sleep is there since the first; the other is the newest that the validator knows.
VERSIONS = ["1.30", "1.37"]
SETTINGS = subprocess.run([program(), "--print-settings-table"], env=environment(), stdout=subprocess.PIPE, text=True).stdout
FLAGS = set(re.findall(r"^\| `--(?:\[no-\])?([a-z0-9-]+)", SETTINGS, re.M))


def kustomize(name):
    if not shutil.which("kubectl"):
        pytest.skip("there is no kubectl for this machine (scripts/fetch_kubernetes.sh)")
    done = subprocess.run(["kubectl", "kustomize", KUSTOMIZE / name], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture
def render(tmp_path):
    """Returns render(values, release), what `helm template RELEASE deploy/helm/millrace -n millrace` makes. ValueError: Helm refuses the values."""
    if not shutil.which("helm"):
        pytest.skip("there is no Helm for this machine (scripts/fetch_kubernetes.sh)")

    def template(values=None, release="millrace"):
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        done = subprocess.run(["helm", "template", release, CHART, "-n", "millrace", "-f", file, "--kube-version", VERSIONS[0]],
                              capture_output=True, text=True, timeout=60)
        if done.returncode != 0 or done.stderr:
            raise ValueError(done.stderr)
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return template


def validate(document):
    kind = document["kind"]
    if kind in SCHEMAS:
        assert document["apiVersion"] in SCHEMAS[kind], f"{kind}: the project serves no {document['apiVersion']}"
        jsonschema.Draft202012Validator(SCHEMAS[kind][document["apiVersion"]]).validate(document)
        if kind == "LeaderWorkerSet":
            for role in ("leaderTemplate", "workerTemplate"):
                template = document["spec"]["leaderWorkerTemplate"][role]
                validate({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": role.lower()}, "template": template})
        return
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def by_name(documents):
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def deployment(documents):
    """Returns the Deployment or, of a LeaderWorkerSet, what would be one of its leaders."""
    for document in documents:
        if document["kind"] == "Deployment":
            return document
        if document["kind"] == "LeaderWorkerSet":
            leader = document["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
            return {"spec": {"template": leader, "selector": {"matchLabels": leader["metadata"]["labels"]}}}
    raise AssertionError("nothing runs the server")


def container(documents):
    containers = deployment(documents)["spec"]["template"]["spec"]["containers"]
    assert len(containers) == 1
    return containers[0]


def environment_of(documents):
    """Returns the container's variables by name. Kubernetes takes the last of those with one name, and warns."""
    variables = {variable["name"]: variable for variable in container(documents)["env"]}
    assert len(variables) == len(container(documents)["env"])
    return variables


CHART_VALUES = {
    "default": {},
    "gpu": {"device": "cuda"},
    "gpu, all": {
        "device": "cuda", "model": "org/name", "image": {"repository": "registry.example.com/millrace", "tag": "1", "pullPolicy": "Always"}, "imagePullSecrets": [{"name": "pull"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}}, "nodeSelector": {"gpu": "h100"}, "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}}, "settings": {"MILLRACE_MAX_NUM_SEQS": 64, "MILLRACE_KV_CACHE_DTYPE": "fp8"},
        "cache": {"kind": "pvc", "storageClass": "fast", "accessModes": ["ReadWriteOnce"]}, "autoscaling": {"kind": "keda"}, "monitor": {"kind": "service"},
    },
    "cpu, sized": {"resources": {"limits": {"cpu": "8", "memory": "16Gi"}}, "settings": {"MILLRACE_THREADS": "8"}, "cache": {"kind": "emptyDir", "size": "20Gi"},
                   "autoscaling": {"kind": "hpa"}, "monitor": {"kind": "pod"}, "drainSeconds": 120, "preStopSeconds": 5},
    "existing claim": {"cache": {"kind": "existing", "claim": "models"}, "networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
    "pool": {"device": "cuda", "inferencePool": {"enabled": True}, "monitor": {"kind": "pod"}},
    "keys and TLS": {"keys": {"secret": "tenants"}, "tls": {"secret": "certificate", "clientCertificates": "required"}, "monitor": {"kind": "service"}},
    "extras": {
        "extraArgs": ["--log=scheduler=debug"], "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}], "podLabels": {"team": "a"},
        "podAnnotations": {"example.com/scrape": "true"}, "extraVolumes": [{"name": "certificates", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/ssl/extra", "readOnly": True}], "priorityClassName": "high", "runtimeClassName": "nvidia",
    },
}


@pytest.fixture
def with_components():
    """Returns with_components(overlay, components), which makes a kustomization of them in a folder beside theirs."""
    with tempfile.TemporaryDirectory(dir=KUSTOMIZE) as folder:

        def make(overlay, components):
            one = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [f"../{overlay}"],
                   "components": [f"../{component}" for component in components]}
            (pathlib.Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(one))
            return kustomize(folder)

        yield make


@pytest.mark.parametrize("name", [name for name in KUSTOMIZATIONS if name not in COMPONENTS])
def test_what_kustomize_makes_is_valid(name):
    documents = kustomize(name)
    assert documents
    for document in documents:
        validate(document)


@pytest.mark.parametrize("name", CHART_VALUES)
def test_what_the_chart_makes_is_valid(render, name):
    for document in render(CHART_VALUES[name], release="mine"):
        validate(document)
        assert document["metadata"]["name"].startswith("mine")


def test_the_validators_refuse_what_is_wrong():
    documents = by_name([*kustomize("overlays/cpu"), *kustomize("extras/keda")])
    wrong = documents["Deployment", "millrace"]
    wrong["spec"]["template"]["spec"]["containers"][0]["port"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong)
    wrong = documents["ScaledObject", "millrace"]
    wrong["spec"]["minReplicas"] = 2
    with pytest.raises(jsonschema.ValidationError):
        validate(wrong)


def comparable(documents):
    """Returns the objects by kind and name, with lists of named things in the order of their names."""
    objects = json.loads(json.dumps(documents))
    for made in objects:
        made["metadata"].pop("annotations", None)  # the chart's claim asks Helm to keep it
        pod = made["spec"]["template"]["spec"] if made["kind"] == "Deployment" else {}
        service = made["spec"] if made["kind"] == "Service" else {}
        lists = [service.get("ports", []), pod.get("volumes", [])]
        lists += [one[kind] for one in pod.get("containers", []) for kind in ("env", "volumeMounts")]
        for named in lists:
            named.sort(key=lambda one: one["name"])
    return by_name(objects)


@pytest.mark.parametrize("kustomizations, values", [
    (["overlays/cpu"], {}),
    (["overlays/gpu"], {"device": "cuda"}),
    (["overlays/gpu-tensor-parallel"], {"device": "cuda", "gpus": 2}),
    (["overlays/gpu-inference-pool"], {"device": "cuda", "inferencePool": {"enabled": True}}),
    (["overlays/cpu", "extras/hpa", "extras/servicemonitor"], {"autoscaling": {"kind": "hpa"}, "monitor": {"kind": "service"}}),
    (["overlays/cpu", "extras/keda", "extras/podmonitor"], {"autoscaling": {"kind": "keda"}, "monitor": {"kind": "pod"}}),
])
def test_the_chart_and_kustomize_make_the_same(render, kustomizations, values):
    ours = comparable([document for name in kustomizations for document in kustomize(name)])
    charts = comparable(render(values))
    if "autoscaling" in values:  # The chart leaves the number to the autoscaler.
        del ours["Deployment", "millrace"]["spec"]["replicas"]
    assert charts.keys() == ours.keys()
    for name in ours:
        assert charts[name] == ours[name], name


@pytest.mark.parametrize("components, values", [
    (["keys"], {"keys": {"secret": "millrace-keys"}}),
    (["tls"], {"tls": {"secret": "millrace-tls"}}),
    (["keys", "tls"], {"keys": {"secret": "millrace-keys"}, "tls": {"secret": "millrace-tls"}}),
])
def test_the_chart_and_the_components_make_the_same(render, with_components, components, values):
    ours = comparable(with_components("overlays/cpu", [f"components/{name}" for name in components]))
    charts = comparable(render(values))
    assert charts.keys() == ours.keys()
    for name in ours:
        assert charts[name] == ours[name], name


def test_a_server_with_mounted_keys_and_certificate_is_probed_and_scraped(render, start_server, tmp_path):
    """The paths of the volumes are those of the variables; with the Secrets' files there a server starts, and needs no key at the probes' port."""
    documents = render({"keys": {"secret": "tenants"}, "tls": {"secret": "certificate"}, "monitor": {"kind": "service"}})
    mounts = {mount["name"]: mount["mountPath"] for mount in container(documents)["volumeMounts"]}
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in deployment(documents)["spec"]["template"]["spec"]["volumes"] if "secret" in volume}
    assert secrets == {"keys": "tenants", "tls": "certificate"}
    folders = {mounts[name]: tmp_path / name for name in secrets}
    for folder in folders.values():
        folder.mkdir()
    (tmp_path / "keys" / "keys.json").write_text(json.dumps({"keys": [{"name": "a", "sha256": hashlib.sha256(b"key-of-a").hexdigest()}]}))
    for file, issued in zip(("tls.crt", "tls.key"), Authority(tmp_path, "ours").issue("server")):
        (tmp_path / "tls" / file).write_bytes(issued.read_bytes())
    variables = {}
    for name, variable in environment_of(documents).items():
        value = variable.get("value", "")
        for mounted, folder in folders.items():
            value = value.replace(mounted, str(folder))
        if name.startswith(("MILLRACE_SSL", "MILLRACE_KEYS", "MILLRACE_METRICS")):
            variables[name] = value
    server = start_server("--device", "fake", "--metrics-port", "0", env=variables)
    plain = f"http://127.0.0.1:{server.ports['metrics']}"
    probes = [container(documents)[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    (endpoint,) = by_name(documents)["ServiceMonitor", "millrace"]["spec"]["endpoints"]
    assert {probe["port"] for probe in probes} == {endpoint["port"]} == {"metrics"} and "authorization" not in endpoint
    for path in [*(probe["path"] for probe in probes), endpoint["path"]]:
        assert httpx.get(plain + path).status_code == 200, path
    listed = f"https://127.0.0.1:{server.ports['http']}/v1/models"
    assert httpx.get(listed, verify=False).status_code == 401
    assert httpx.get(listed, verify=False, headers={"Authorization": "Bearer key-of-a"}).status_code == 200


@pytest.mark.parametrize("values, said", [
    ({"device": "gpu"}, "at '/device': value must be one of 'cpu', 'cuda'"),
    ({"device": "cuda", "gpus": 9}, "at '/gpus': maximum: got 9, want 8"),
    ({"gpus": 2}, "gpus: more than one is for device cuda"),
    ({"cache": {"kind": "nfs"}}, "at '/cache/kind': value must be one of 'pvc', 'existing', 'emptyDir'"),
    ({"cache": {"kind": "existing"}}, "cache.claim: expected the name of a claim"),
    ({"autoscaling": {"kind": "vpa"}}, "at '/autoscaling/kind': value must be one of 'none', 'hpa', 'keda'"),
    ({"monitor": {"kind": "both"}}, "at '/monitor/kind': value must be one of 'none', 'service', 'pod'"),
    ({"settings": {"MAX_NUM_SEQS": 1}}, "'MAX_NUM_SEQS' does not match pattern"),
    ({"settings": {"MILLRACE_DRAIN_TIMEOUT": "9s"}}, "settings: got MILLRACE_DRAIN_TIMEOUT, which pods and probes rely on; set drainSeconds"),
    ({"extraVolume": []}, "additional properties 'extraVolume' not allowed"),
    ({"image": "millrace:cpu"}, "at '/image': got string, want object"),
    ({"tls": {"clientCertificates": "required"}}, "tls.clientCertificates: expected tls.secret beside it"),
    ({"keys": {"secret": "tenants"}, "inferencePool": {"enabled": True}}, "keys.secret: an InferencePool's endpoint picker sends no key"),
])
def test_the_chart_refuses_wrong_values(render, values, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        render(values)


def test_the_schema_has_every_value_of_the_chart():
    def check(values, schema):
        assert schema["additionalProperties"] is False
        assert set(values) == set(schema["properties"]) - {"global"}
        for name, value in values.items():
            if isinstance(value, dict) and "properties" in schema["properties"][name]:
                check(value, schema["properties"][name])

    check(yaml.safe_load((CHART / "values.yaml").read_text()), json.loads((CHART / "values.schema.json").read_text()))


def test_each_variable_is_set_once_by_who_says_it_last(render):
    values = {
        "model": "org/name", "secret": "mine",
        "settings": {"MILLRACE_MODEL": "org/other", "MILLRACE_MAX_NUM_BATCHED_TOKENS": 2000000, "MILLRACE_DTYPE": "float32", "MILLRACE_PREFIX_CACHING": False},
        "extraEnv": [{"name": "MILLRACE_DTYPE", "value": "bfloat16"}, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
    }
    variables = environment_of(render(values))
    assert {name: variable["value"] for name, variable in variables.items() if "value" in variable}.items() >= {
        "MILLRACE_MODEL": "org/other", "MILLRACE_MAX_NUM_BATCHED_TOKENS": "2000000", "MILLRACE_DTYPE": "bfloat16", "MILLRACE_PREFIX_CACHING": "false"}.items()
    assert variables["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    assert variables["MILLRACE_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "api-key"}


@pytest.mark.parametrize("image, expected", [
    ({}, "millrace:cpu"),
    ({"repository": "registry.example.com:5000/millrace"}, "registry.example.com:5000/millrace:cpu"),
    ({"tag": "0.1.0"}, "millrace:0.1.0"),
    ({"repository": "r/m", "digest": "sha256:" + "0" * 64}, "r/m@sha256:" + "0" * 64),
])
def test_the_image_is_put_together(render, image, expected):
    assert container(render({"image": image}))["image"] == expected


def test_the_chart_takes_what_the_page_sets(render):
    given = re.findall(r"(?:--set |`)([a-zA-Z.]+)=([\w/.-]+)", (ROOT / "docs" / "kubernetes.md").read_text())
    assert len(given) >= 3
    for name, value in given:
        values = value
        for part in reversed(name.split(".")):
            values = {part: values}
        render(values)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_objects_go_together(name):
    documents = kustomize(name)
    objects = by_name(documents)
    pod = deployment(documents)["spec"]["template"]
    labels = pod["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container(documents)["ports"]}
    assert deployment(documents)["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for (kind, _), made in objects.items():
        if kind == "Service":
            assert made["spec"]["selector"].items() <= labels.items()
            for port in made["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]
        if kind == "PodDisruptionBudget":
            assert made["spec"]["selector"]["matchLabels"].items() <= labels.items()
        if kind == "NetworkPolicy":
            assert made["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
            named = {port["port"] for rule in made["spec"]["ingress"] for port in rule.get("ports", [])}
            assert named <= set(ports)
        if kind == "InferencePool":
            assert made["spec"]["selector"]["matchLabels"].items() <= labels.items()
            assert [target["number"] for target in made["spec"]["targetPorts"]] == [ports["http"]]
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"] if "emptyDir" not in volume]
    assert claims and all(("PersistentVolumeClaim", claim) in objects for claim in claims)
    assert ("ServiceAccount", pod["spec"]["serviceAccountName"]) in objects


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


def check_the_end(documents):
    """Grace is enough for preStop, the drain, a second of last words and ten for a device that hangs (server/server.cc, main.cc)."""
    pod = deployment(documents)["spec"]["template"]["spec"]
    pause = container(documents)["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = seconds(environment_of(documents)["MILLRACE_DRAIN_TIMEOUT"]["value"])
    assert pod["terminationGracePeriodSeconds"] >= pause + drain + 1 + 10
    ready = container(documents)["readinessProbe"]
    # A pod that goes is known as such before it refuses work.
    assert pause >= ready["periodSeconds"] * ready["failureThreshold"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_grace_fits_the_drain(name):
    check_the_end(kustomize(name))


def test_the_charts_grace_fits_the_drain(render):
    check_the_end(render(CHART_VALUES["cpu, sized"]))


def check_the_rollout(made):
    """A rollout that is still loading has not failed."""
    (one,) = made["spec"]["template"]["spec"]["containers"]
    probe = one["startupProbe"]
    assert made["spec"]["progressDeadlineSeconds"] > probe["periodSeconds"] * probe["failureThreshold"]


def test_a_rollout_may_take_as_long_as_a_start(render):
    check_the_rollout(by_name(kustomize("base"))["Deployment", "millrace"])
    check_the_rollout(by_name(render({"startupSeconds": 7200}))["Deployment", "millrace"])


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_probes_are_answered(fake_server, name):
    documents = kustomize(name)
    one = container(documents)
    probes = [one[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["httpGet"]["port"] for probe in probes} == {"http"}
    for probe in probes:
        assert httpx.get(fake_server.http + probe["httpGet"]["path"]).status_code == 200


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_server_takes_the_settings(name):
    """It gets as far as the model, which is not there."""
    documents = kustomize(name)
    variables = environment_of(documents)
    ours = {key: variable.get("value", "a-key") for key, variable in variables.items() if key.startswith("MILLRACE_")}
    assert {key[9:].lower().replace("_", "-") for key in ours} <= FLAGS
    if "MILLRACE_NNODES" in ours:  # The controller's variables; no other node comes.
        group = {"$(LWS_LEADER_ADDRESS)": "127.0.0.1", "$(LWS_WORKER_INDEX)": "0", "$(LWS_GROUP_SIZE)": "2"}
        ours = {key: group.get(value, value) for key, value in ours.items()} | {"MILLRACE_NODE_KEY": "a-key-of-this-test", "MILLRACE_NODE_TIMEOUT": "1s"}
    status, output = run(env={**ours, "MILLRACE_MODEL": "/nowhere", "MILLRACE_LOG_FORMAT": "text"})
    assert status == 1
    assert "cannot start" in output and "settings: " in output, output
    defaults = dict(re.findall(r"^\| `--(http|grpc|metrics)-port PORT` \| `(\d+)`", SETTINGS, re.M))
    assert {port["name"]: str(port["containerPort"]) for port in container(documents)["ports"]} == defaults


def test_the_workers_of_a_group_are_its_leader_but_for_what_serves():
    documents = kustomize("overlays/gpu-leader-worker-set")
    (made,) = [document["spec"]["leaderWorkerTemplate"] for document in documents if document["kind"] == "LeaderWorkerSet"]
    leader, worker = (json.loads(json.dumps(made[role])) for role in ("leaderTemplate", "workerTemplate"))
    (one,), (other,) = (template["spec"]["containers"] for template in (leader, worker))
    for key in ("ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle"):
        del one[key]  # node 0 alone serves
    assert one == other
    del leader["metadata"], worker["metadata"]
    assert leader == worker
    variables = {variable["name"]: variable.get("value") for variable in other["env"]}
    ranks, gpus = int(variables["MILLRACE_TENSOR_PARALLEL_SIZE"]), int(other["resources"]["limits"]["nvidia.com/gpu"])
    assert ranks == made["size"] * gpus and variables["MILLRACE_NNODES"] == "$(LWS_GROUP_SIZE)"
    # Clients are sent to leaders, and nodes reach one another on all ports.
    objects = by_name(documents)
    for service in ("millrace", "millrace-pods"):
        assert not objects["Service", service]["spec"]["selector"].items() <= made["workerTemplate"]["metadata"]["labels"].items()
    assert {"podSelector": {"matchLabels": made["workerTemplate"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]}} in [
        peer for rule in objects["NetworkPolicy", "millrace-nodes"]["spec"]["ingress"] if "ports" not in rule for peer in rule["from"]]


def test_no_service_takes_the_name_of_the_one_that_finds_leaders():
    """The controller makes a headless Service of the set's name, if there is none; it resolves LWS_LEADER_ADDRESS."""
    objects = by_name(kustomize("overlays/gpu-leader-worker-set"))
    (name,) = [name for kind, name in objects if kind == "LeaderWorkerSet"]
    assert ("Service", name) not in objects


def test_secrets_are_those_that_the_page_makes():
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for name in OVERLAYS:
        for variable in environment_of(kustomize(name)).values():
            if "valueFrom" in variable:
                secret = variable["valueFrom"]["secretKeyRef"]
                assert re.search(rf"create secret generic {secret['name']} .*--from-literal={secret['key']}=", page) or secret.get("optional")


def files():
    """The page, and the text files of deploy/ but for the tools of GPU machines and what names flags of the load generator and of a router."""
    below = [path for path in DEPLOY.rglob("*") if path.is_file() and DEPLOY / "gpu" not in path.parents and "__pycache__" not in path.parts
             and path.name not in ("rolling_restart.sh", "sglang-router.flags")]
    return [ROOT / "docs" / "kubernetes.md", *below]


FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
# Flags of other programs, and of ours those that are no settings.
OTHERS = {
    "cert", "from", "from-file", "from-literal", "help", "install", "interval", "key", "no-install-recommends", "now", "prefix", "print-completion", "print-man-page", "read-only", "set",
    "start-period", "strip-unneeded", "timeout", "version",
}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_names_what_the_server_has(fake_server, secured_server, path):
    text = path.read_text()
    switches = {f"no-{flag}" for flag in re.findall(r"^\| `--\[no-\]([a-z0-9-]+)", SETTINGS, re.M)}
    assert set(FLAG.findall(text)) <= FLAGS | switches | OTHERS
    for variable in re.findall(r"\bMILLRACE_([A-Z0-9_]+)\b(?!=O[NF])", text):
        assert variable.lower().replace("_", "-") in FLAGS or re.search(rf"-DMILLRACE_{variable}=", text), variable
    metrics = "".join([httpx.get(fake_server.http + "/metrics").text, httpx.get(f"http://127.0.0.1:{secured_server.ports['metrics']}/metrics").text,
                       gpu_exposition()])
    for name in re.findall(r"\b(?:vllm:|millrace_|process_)\w+", text):
        assert re.search(rf"^{name}[ {{]", metrics, re.M), name
    # prometheus-adapter's names have _ for the colon.
    for name in re.findall(r"\bvllm_(\w+)", text):
        assert re.search(rf"^vllm:{name}[ {{]", metrics, re.M), name
    for pattern in re.findall(r'"vllm:\(([^)]*)\)"', text):
        assert all(re.search(rf"^vllm:{name}[ {{]", metrics, re.M) for name in pattern.split("|"))
    for endpoint in re.findall(r"path: (/[a-z]+)\b(?!/)", text):
        assert httpx.get(fake_server.http + endpoint).status_code == 200, endpoint
    for named in re.findall(r"\b(?:deploy|docs|scripts|overlays|extras|components)/[\w./-]*\w", text):
        base = KUSTOMIZE if named.startswith(("overlays", "extras", "components")) else ROOT
        assert (base / named).exists(), named
