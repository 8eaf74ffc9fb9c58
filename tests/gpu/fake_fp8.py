"""What FP8 does to a model of transformers, in float32: numbers are rounded as kernels/fp8.cuh does, everything else stays.

A linear's weight becomes code * scale, and so does what it consumes; keys and values likewise when a cache is given to a run.
"""
import torch
from transformers import DynamicCache

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
FLOOR = 1e-12
BLOCK = 128


def codes(values, scale):
    """E4M3 of values / scale, saturated. The division is a product with the inverse, as the kernels have it."""
    return (values * (1.0 / scale)).clamp(-LARGEST, LARGEST).to(FP8)


def rounded(values, scale):
    return codes(values, scale).float() * scale


def scale_of(amax):
    return amax.clamp(min=FLOOR) / LARGEST


def channel_scales(weight):
    """[rows, 1]"""
    return scale_of(weight.float().abs().amax(1, keepdim=True))


def spread(scales, rows, columns):
    """[rows, columns] of a scale a 128x128 block."""
    return scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]


class FakeLinear(torch.nn.Module):
    """`weight`: dequantized, float32. What comes in is rounded by `activations`:
    a number (a static scale of the tensor), "token", or "group" (of 128 columns of a token). A bias is not rounded."""

    def __init__(self, weight, activations, bias=None):
        super().__init__()
        self.weight = weight
        self.activations = activations
        self.bias = bias

    def forward(self, x):
        if self.activations == "token":
            x = rounded(x, scale_of(x.abs().amax(-1, keepdim=True)))
        elif self.activations == "group":
            width = x.shape[-1]
            groups = torch.nn.functional.pad(x, (0, -width % BLOCK)).unflatten(-1, (-1, BLOCK))
            x = rounded(groups, scale_of(groups.abs().amax(-1, keepdim=True))).flatten(-2)[..., :width]
        else:
            x = rounded(x, torch.tensor(self.activations, device=x.device))
        return torch.nn.functional.linear(x, self.weight, self.bias)


class Bf16Linear(FakeLinear):
    """The same with BF16 around it, as a GPU has it. What that rounds otherwise (0.3 % of what enters a linear) moves one code in twenty
    by a whole step of FP8, and the next linear's codes again: two right computations differ by about half of what FP8 itself costs.
    How much that is in a model, this one's difference from FakeLinear says; a right server may be off by PEER times as much."""

    def forward(self, x):
        return super().forward(x.bfloat16().float()).bfloat16().float()


PEER = 1.1


def linears(model):
    """(parent, name, "model.layers.N…", module) of each linear of the layers."""
    for path, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and ".layers." in path:
            parent, name = path.rsplit(".", 1)
            yield model.get_submodule(parent), name, path, module


def quantize(model, kind=FakeLinear):
    """As --quantization fp8: weights of BF16 to FP8 by channel, activations by token."""
    for parent, name, _, module in linears(model):
        weight = module.weight.detach().bfloat16().float()
        setattr(parent, name, kind(rounded(weight, channel_scales(weight)), "token", module.bias))
    return model


def quantize_head(model):
    """As --quantize-lm-head: the head's weight by blocks of 128x128, what it consumes by groups of 128."""
    weight = model.lm_head.weight.detach().bfloat16().float()
    rows, columns = weight.shape
    blocks = torch.nn.functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK)).unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    scales = spread(scale_of(blocks.abs().amax((1, 3))), rows, columns)
    model.lm_head = FakeLinear(rounded(weight, scales), "group")
    return model


class Fp8Cache(DynamicCache):
    """Keys (turned) and values go through FP8. `scales`: of each layer (k, v); 1 where there is none."""

    def __init__(self, scales=None):
        super().__init__()
        self.scales = scales or {}

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        k, v = self.scales.get(layer_idx, (1.0, 1.0))
        return super().update(rounded(key_states, torch.tensor(k, device=key_states.device)),
                              rounded(value_states, torch.tensor(v, device=key_states.device)), layer_idx, *args, **kwargs)
