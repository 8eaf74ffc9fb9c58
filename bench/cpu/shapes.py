"""The models of which random_file.py writes files: their metadata, and their tensors with the innermost dimension first."""
F32, Q4_K = 0, 12  # ggml's types


def one(_draw):
    return 1.0


def small(draw):
    return draw.gauss(0, 0.02)


def metadata(architecture, vocabulary, **keys):
    """Returns a file's metadata; two underscores of a name stand for a dot."""
    return {"general.architecture": architecture, "tokenizer.ggml.model": "no_vocab", f"{architecture}.vocab_size": vocabulary,
            **{f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}}


def quantized(name, *shape):
    return f"{name}.weight", Q4_K, shape, None


def floats(name, *shape, number=one):
    return name, F32, shape, number


def attention(shape, layer, gated):
    """A layer's attention with norms of the heads; the query of a gated one has the gates of its outputs, too."""
    yield quantized(f"{layer}attn_q", shape.HIDDEN, (2 if gated else 1) * shape.HEADS * shape.HEAD_SIZE)
    for linear in ("attn_k", "attn_v"):
        yield quantized(layer + linear, shape.HIDDEN, shape.KV_HEADS * shape.HEAD_SIZE)
    for norm in ("attn_q_norm", "attn_k_norm"):
        yield floats(f"{layer}{norm}.weight", shape.HEAD_SIZE)
    yield quantized(f"{layer}attn_output", shape.HEADS * shape.HEAD_SIZE, shape.HIDDEN)


def network(shape, layer):
    for linear in ("ffn_gate", "ffn_up"):
        yield quantized(layer + linear, shape.HIDDEN, shape.FEED_FORWARD)
    yield quantized(f"{layer}ffn_down", shape.FEED_FORWARD, shape.HIDDEN)


class Olmoe:
    """OLMoE's widths with four layers."""
    LAYERS, HIDDEN, HEADS, EXPERTS, CHOSEN, EXPERT_SIZE, VOCABULARY = 4, 2048, 16, 64, 8, 1024, 50304

    METADATA = metadata(
        "olmoe", VOCABULARY, context_length=4096, embedding_length=HIDDEN, block_count=LAYERS, feed_forward_length=EXPERT_SIZE,
        attention__head_count=HEADS, attention__head_count_kv=HEADS, attention__layer_norm_rms_epsilon=1e-5, rope__freq_base=10000.0,
        expert_count=EXPERTS, expert_used_count=CHOSEN)

    @classmethod
    def tensors(cls):
        yield quantized("token_embd", cls.HIDDEN, cls.VOCABULARY)
        for layer in (f"blk.{i}." for i in range(cls.LAYERS)):
            for norm in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"):
                yield floats(f"{layer}{norm}.weight", cls.HIDDEN)
            for linear in ("attn_q", "attn_k", "attn_v", "attn_output"):
                yield quantized(layer + linear, cls.HIDDEN, cls.HIDDEN)
            yield floats(f"{layer}ffn_gate_inp.weight", cls.HIDDEN, cls.EXPERTS, number=small)
            for linear in ("ffn_gate_exps", "ffn_up_exps"):
                yield quantized(layer + linear, cls.HIDDEN, cls.EXPERT_SIZE, cls.EXPERTS)
            yield quantized(f"{layer}ffn_down_exps", cls.EXPERT_SIZE, cls.HIDDEN, cls.EXPERTS)
        yield floats("output_norm.weight", cls.HIDDEN)
        yield quantized("output", cls.HIDDEN, cls.VOCABULARY)


class Qwen35:
    """Qwen3.5-0.8B without its images: of four layers three are gated delta rules, and the embedding is the head."""
    LAYERS, INTERVAL, HIDDEN, FEED_FORWARD, VOCABULARY = 24, 4, 1024, 3584, 248320
    HEADS, KV_HEADS, HEAD_SIZE, ROTATED = 8, 2, 256, 64
    DELTA_HEADS, DELTA_SIZE, TAPS = 16, 128, 4  # as many heads of keys as of values

    METADATA = metadata(
        "qwen35", VOCABULARY, context_length=262144, embedding_length=HIDDEN, block_count=LAYERS, feed_forward_length=FEED_FORWARD,
        attention__head_count=HEADS, attention__head_count_kv=KV_HEADS, attention__key_length=HEAD_SIZE,
        attention__value_length=HEAD_SIZE, attention__layer_norm_rms_epsilon=1e-6, rope__freq_base=1e7,
        rope__dimension_count=ROTATED, rope__dimension_sections=[11, 11, 10, 0], full_attention_interval=INTERVAL,
        ssm__conv_kernel=TAPS, ssm__state_size=DELTA_SIZE, ssm__group_count=DELTA_HEADS, ssm__time_step_rank=DELTA_HEADS,
        ssm__inner_size=DELTA_HEADS * DELTA_SIZE)

    @classmethod
    def _delta(cls, layer):
        inner = cls.DELTA_HEADS * cls.DELTA_SIZE
        yield quantized(f"{layer}attn_qkv", cls.HIDDEN, 3 * inner)
        yield quantized(f"{layer}attn_gate", cls.HIDDEN, inner)
        for gate in ("ssm_beta", "ssm_alpha"):
            yield quantized(layer + gate, cls.HIDDEN, cls.DELTA_HEADS)
        yield floats(f"{layer}ssm_conv1d.weight", cls.TAPS, 3 * inner, number=lambda draw: draw.gauss(0, 0.5))
        # Steps of about log(2) give factors of 0.5 to 0.99 by which states decay.
        yield floats(f"{layer}ssm_a", cls.DELTA_HEADS, number=lambda draw: -draw.uniform(0.01, 1))
        yield floats(f"{layer}ssm_dt.bias", cls.DELTA_HEADS, number=small)
        yield floats(f"{layer}ssm_norm.weight", cls.DELTA_SIZE)
        yield quantized(f"{layer}ssm_out", inner, cls.HIDDEN)

    @classmethod
    def tensors(cls):
        yield quantized("token_embd", cls.HIDDEN, cls.VOCABULARY)
        for i in range(cls.LAYERS):
            layer = f"blk.{i}."
            for norm in ("attn_norm", "post_attention_norm"):
                yield floats(f"{layer}{norm}.weight", cls.HIDDEN)
            yield from attention(cls, layer, gated=True) if (i + 1) % cls.INTERVAL == 0 else cls._delta(layer)
            yield from network(cls, layer)
        yield floats("output_norm.weight", cls.HIDDEN)


class Lfm25:
    """LFM2.5-1.2B: of 16 layers ten are short convolutions, and the embedding is the head."""
    LAYERS, HIDDEN, FEED_FORWARD, VOCABULARY, TAPS = 16, 2048, 8192, 65536, 3
    HEADS, KV_HEADS, HEAD_SIZE, ATTENDING = 32, 8, 64, (2, 5, 8, 10, 12, 14)

    METADATA = metadata(
        "lfm2", VOCABULARY, context_length=128000, embedding_length=HIDDEN, block_count=LAYERS, feed_forward_length=FEED_FORWARD,
        attention__head_count=HEADS, attention__layer_norm_rms_epsilon=1e-5, rope__freq_base=1e6, shortconv__l_cache=TAPS,
        attention__head_count_kv=[0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0])

    @classmethod
    def _convolution(cls, layer):
        yield quantized(f"{layer}shortconv.in_proj", cls.HIDDEN, 3 * cls.HIDDEN)
        yield floats(f"{layer}shortconv.conv.weight", cls.TAPS, cls.HIDDEN, number=lambda draw: draw.gauss(0, 0.5))
        yield quantized(f"{layer}shortconv.out_proj", cls.HIDDEN, cls.HIDDEN)

    @classmethod
    def tensors(cls):
        yield quantized("token_embd", cls.HIDDEN, cls.VOCABULARY)
        for i in range(cls.LAYERS):
            layer = f"blk.{i}."
            for norm in ("attn_norm", "ffn_norm"):
                yield floats(f"{layer}{norm}.weight", cls.HIDDEN)
            yield from attention(cls, layer, gated=False) if i in cls.ATTENDING else cls._convolution(layer)
            yield from network(cls, layer)
        yield floats("token_embd_norm.weight", cls.HIDDEN)  # llama.cpp's name of the last norm


# By the name that random_file.py takes.
MODELS = {"olmoe": (Olmoe.METADATA, Olmoe.tensors()), "qwen35": (Qwen35.METADATA, Qwen35.tensors()),
          "lfm25": (Lfm25.METADATA, Lfm25.tensors())}
