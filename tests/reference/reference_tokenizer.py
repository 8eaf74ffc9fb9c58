"""SmolLM2's tokenizer as its authors publish it, from the GGUF."""
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer


def load(gguf):
    """transformers' tokenizer for the GGUF at this path.

    Of GGUF's tokenizer.ggml.pre transformers reads only some; "smollm" it takes for plain GPT-2. The pre-tokenizer is
    therefore set to that of the tokenizer.json that the model's authors publish.
    """
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
    ])
    return tokenizer
