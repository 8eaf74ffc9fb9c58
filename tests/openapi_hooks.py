"""What schemathesis has to know beyond /openapi.json: SCHEMATHESIS_HOOKS names this module.

Requests are kept small, and name nothing that depends on the model. Of refusals (400) of bodies that their schema lets pass only those are
taken that the document says in words, since no JSON schema can: REASONS lists them all.
"""
import json
import re

import schemathesis
from schemathesis.generation import GenerationMode

VOCABULARY = 256  # bytes: the fake model's
MOST = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8, "min_tokens": 0, "n": 2, "best_of": 2}
LEAST_MS = 60_000
LEAST_FLOAT = 1e-30  # what is smaller is 0 to the server

# A schema, an expression, a grammar, or a name of a tool has a language of its own (docs/structured-output.md).
GRAMMAR = r"(guided_\w+|json_schema|grammar|regex|ebnf|structured_outputs\.\w+|response_format[\w.]*|output_config\.format|output_format|text\.format" \
          r"|tools\[\d+\][\w.]*)"
REASONS = [
    rf"^{GRAMMAR}\b",
    r"^tool_choice: |^tool_choice asks for a call; allowed: only with tools|^tool_choice names .*; allowed: the name of one of the tools",
    r"; allowed: only when (stream|logprobs|add_generation_prompt) is ",
    r"; allowed: only when stream is false|^best_of is \d+; allowed: n, which is|^n is \d+; allowed: 1 to \d+$",
    r" are both there; allowed: one of them$|allowed: one of output_config.format and output_format",
    r"; allowed: the same as max_completion_tokens",
    r"^max_tokens is 0; allowed: at least 1 \(0 with echo\)",
    r"^ignore_eos is true; allowed: false beside ",
    r"^(thinking_token_budget|thinking\.budget_tokens)(: | is .*beside )",  # beside a grammar, or of a model that does not reason
    r"^previous_response_id is .*; allowed: a response that was stored",
    r"^tools has the name .* twice; allowed: once",
    r"^thinking.*(budget_tokens is missing|; allowed: less than max_tokens)",
    r"^suffix: the model has no tokens|^echo is true; allowed: false beside suffix",
    r"^bad_words\[\d+\] has no tokens|^(allowed_token_ids|bad_words): no token is left|^no token of the model's vocabulary may come next",
    r"; allowed: 1 and any number, or as many of both",
    r"the model.s length is \d+$",
    r"^(after|before)_id is .*; allowed: the id of a model$",
    r"^inputs\[\d+\]|which generates; allowed here: ",  # elements of a tensor's type; a model without tensors
    r"^chat_template_kwargs.* (variables of the template's own|values; allowed: |bytes; allowed: )",
]


def is_valid(case):
    return case.meta is None or case.meta.generation.mode == GenerationMode.POSITIVE


def tokens(value):
    if isinstance(value, list):
        return [tokens(item) for item in value]
    return int(value) % VOCABULARY if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def shrink(body):
    """Returns a valid body whose answer is short, and whose tokens the model has."""
    body = {name: LEAST_FLOAT if isinstance(value, float) and 0 < value < LEAST_FLOAT else value for name, value in body.items()}
    for name, most in MOST.items():
        if isinstance(body.get(name), (int, float)):
            body[name] = min(body[name], most)
    if isinstance(body.get("timeout_ms"), (int, float)):
        body["timeout_ms"] = max(body["timeout_ms"], LEAST_MS)
    for name in {"prompt", "input", "tokens", "stop_token_ids", "allowed_token_ids"} & body.keys():
        body[name] = tokens(body[name])
    if isinstance(body.get("logit_bias"), dict):
        body["logit_bias"] = {str(int(token) % VOCABULARY): bias for token, bias in body["logit_bias"].items()}
    if "max_completion_tokens" in body and "max_tokens" in body:
        del body["max_tokens"]
    if isinstance(body.get("truncate_prompt_tokens"), (int, float)) and not 3 <= body["truncate_prompt_tokens"] <= 64:
        body["truncate_prompt_tokens"] = -1
    # Fields that exclude one another go, so that the rest of the body is looked at.
    if body.get("stream") is True:
        body.pop("prompt_logprobs", None)
        body.pop("best_of", None)
    if body.get("output_config") is not None:
        body.pop("output_format", None)
    body.pop("model", None)
    body.pop("dimensions", None)
    return body


@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, dict) and is_valid(case):
        case.body = shrink(case.body)
    if isinstance(case.body, dict):  # a chat goes on until its model's length otherwise
        if case.path == "/v1/chat/completions" and case.body.get("max_completion_tokens") is None and case.body.get("max_tokens") is None:
            case.body["max_tokens"] = 8
        if case.path == "/v1/responses" and case.body.get("max_output_tokens") is None:
            case.body["max_output_tokens"] = 8
    timeout = (case.headers or {}).get("X-Request-Timeout-Ms")
    if timeout is not None and re.fullmatch("[1-9][0-9]{0,4}", str(timeout)):
        case.headers["X-Request-Timeout-Ms"] = str(LEAST_MS)


@schemathesis.hook
def filter_failure(context, failure, case, response):
    kind = type(failure).__name__
    if kind == "AcceptedNegativeData":  # HTTP ignores headers that it does not know
        return "in header - object with unexpected properties" not in failure.message
    if kind != "RejectedPositiveData" or response.status_code != 400:
        return True
    error = json.loads(response.content)["error"]
    message = error if isinstance(error, str) else error["message"]
    if re.search(r"does not support the \w+ API", message):  # of an encoder, or of a model that generates
        return False
    return not any(re.search(reason, message) for reason in REASONS)
