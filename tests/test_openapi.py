"""Holds /openapi.json to the running server: its routes, its events, and whatever schemathesis thinks of.

server/http/openapi/openapi_test.cc compares the documented fields with those that the readers of requests look for.
"""
import json
import os
import pathlib
import subprocess
import sys

import httpx
import jsonschema
import pytest

from daemon import sanitized

pytestmark = pytest.mark.serial

KEY = {"Authorization": "Bearer secret"}
FAKE = ("--device", "fake", "--fake-step-us", "0", "--fake-token-us", "0")
# Requests that the fuzzer sends to each operation in `make test`; SCHEMATHESIS_EXAMPLES=1000 looks longer.
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "6")


@pytest.fixture(scope="module")
def document(fake_server):
    return httpx.get(fake_server.http + "/openapi.json").json()


def operations(document):
    return [(path, method.upper(), operation) for path, methods in document["paths"].items() for method, operation in methods.items()]


def test_schemas_are_schemas(document):
    for name, schema in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "x-include" not in json.dumps(schema), name


@pytest.mark.parametrize("port", ["http", "admin"])
def test_every_documented_route_is_there(start_server, port):
    server = start_server(*FAKE)
    base = getattr(server, port)
    found = operations(httpx.get(base + "/openapi.json").json())
    assert len(found) > 20 if port == "http" else any(path == "/admin/status" for path, _, _ in found)
    for path, method, _ in found:
        if path == "/admin/drain":
            continue
        response = httpx.request(method, base + path.replace("{model}", "fake").replace("{file}", "page.js"), json={})
        assert response.status_code not in (405, 501), (method, path)
        assert response.status_code != 404 or "{response_id}" in path or "{file}" in path, (method, path, response.text)
        allowed = httpx.options(base + path).headers["allow"].split(", ")
        assert method in allowed


def test_keys_guard_the_document(start_server):
    server = start_server(*FAKE, "--api-key", "secret")
    refused = httpx.get(server.http + "/openapi.json")
    assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
    document = httpx.get(server.http + "/openapi.json", headers=KEY).json()
    open_paths = {path for path, _, operation in operations(document) if "security" not in operation}
    assert open_paths == {"/", "/livez", "/readyz", "/health"}
    for path, method, _ in operations(document):
        response = httpx.request(method, server.http + path, json={})
        assert (response.status_code == 401) == (path not in open_paths), path


def test_unknown_fields_are_documented_as_they_are_taken(start_server):
    server = start_server(*FAKE, "--unknown-fields", "ignore")
    schemas = httpx.get(server.http + "/openapi.json").json()["components"]["schemas"]
    assert "additionalProperties" not in schemas["ChatRequest"]


def test_examples_are_answered_and_events_have_their_schema(fake_server, document):
    """Every example is taken by its operation, and what comes back is what the document says."""
    seen = 0
    for path, method, operation in operations(document):
        media = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in media.get("examples", {}).values():
            body = example["value"]
            response = httpx.request(method, fake_server.http + path.replace("{model}", "fake"), json=body, timeout=60)
            if response.status_code == 400 and ("does not support the" in response.text or "which generates" in response.text):
                continue  # of encoders and of tensors
            assert response.status_code == 200, (path, body, response.text)
            content = operation["responses"]["200"]["content"]
            if body.get("stream"):
                data = content["text/event-stream"]["schema"]["properties"]["data"]
                schema = data.get("anyOf", [data])[-1]["contentSchema"]
                lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
                answers = [json.loads(line) for line in lines]
            else:
                schema, answers = content["application/json"]["schema"], [response.json()]
            validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
            for answer in answers:
                validator.validate(answer)
                seen += 1
    assert seen > 40


def schemathesis(server, folder, *flags):
    """Runs schemathesis with every check on what the server says of itself. Returns its output, and whether it found nothing."""
    here = pathlib.Path(__file__).parent
    done = subprocess.run(
        [pathlib.Path(sys.executable).parent / "st", "run", server.http + "/openapi.json", "--checks", "all", "--seed", "1",
         "--generation-deterministic", "--continue-on-failure", "--no-color", "-H", "Authorization: Bearer secret",
         *flags],
        cwd=folder, env={**os.environ, "SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(here)}, capture_output=True, text=True)
    assert httpx.get(server.http + "/health").status_code == 200
    return done.stdout + done.stderr, done.returncode == 0


def test_schemathesis_finds_nothing(start_server, tmp_path):
    output, clean = schemathesis(start_server(*FAKE, "--api-key", "secret"), tmp_path, "--phases", "examples,fuzzing", "-n", EXAMPLES)
    assert clean, output
    assert "generated" in output


@pytest.mark.skipif(sanitized(), reason="thousands of requests")
def test_schemathesis_finds_nothing_at_the_edges_of_each_field(start_server, tmp_path):
    """The coverage phase walks every field of an operation, which takes long: of a few operations here, of all with SCHEMATHESIS_EXAMPLES."""
    some = [] if "SCHEMATHESIS_EXAMPLES" in os.environ else ["--include-path-regex", "^/(detokenize|v1/models.*|health)$"]
    output, clean = schemathesis(start_server(*FAKE, "--api-key", "secret"), tmp_path, "--phases", "coverage", *some)
    assert clean, output


@pytest.mark.model
def test_schemathesis_finds_nothing_in_the_real_model(model_server, tmp_path):
    flags = ("--phases", "examples,fuzzing", "-n", "3", "--include-path-regex", "^/(v1/completions|tokenize|detokenize)$")
    output, clean = schemathesis(model_server, tmp_path, *flags)
    assert clean, output


@pytest.mark.model
def test_schemathesis_finds_nothing_in_an_encoder(start_server, tmp_path):
    server = start_server("--model", os.environ["MILLRACE_MINILM"], "--api-key", "secret")
    output, clean = schemathesis(server, tmp_path, "--phases", "examples,fuzzing", "-n", EXAMPLES, "--include-path-regex", "embed|score|rerank")
    assert clean, output
