"""500 schemas as applications send them (pydantic, zod, OpenAI's strict subset), each with instances and near misses.

    python -m schemas.corpus    # from tests/: prints them, one JSON object a line
"""
import json
import random

from . import from_openai, from_pydantic, from_zod
from .instances import instances

COUNTS = {"pydantic": 200, "zod": 200, "openai": 100}


def corpus(seed=1, valid=4, invalid=3):
    """Yields {"source", "schema", "valid", "invalid"}: the same for the same versions of pydantic and openai."""
    rng = random.Random(seed)
    writers = {"pydantic": from_pydantic, "zod": from_zod, "openai": from_openai}
    for source, writer in writers.items():
        for schema in writer.schemas(rng, COUNTS[source]):
            good, bad = instances(schema, rng, valid, invalid)
            yield {"source": source, "schema": schema, "valid": good, "invalid": bad}


if __name__ == "__main__":
    for entry in corpus():
        print(json.dumps(entry))
