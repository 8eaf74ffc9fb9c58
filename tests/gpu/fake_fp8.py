"""Simulates FP8 in a transformers model in float32: numbers are rounded as in kernels/fp8.cuh, and all else is unchanged.

A linear's weight becomes code * scale, and so does what it consumes; keys and values likewise when a cache is given to a run.
"""
import torch
from transformers import DynamicCache

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
FLOOR = 1e-12
BLOCK = 128


def codes(values, scale):
    """Returns E4M3 of values / scale, saturated. The division is a product with the inverse, as in the kernels."""
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
    """FakeLinear with BF16 around it, as on a GPU. Different roundings (0.3 % of a linear's inputs) move one code in twenty
    by a whole step of FP8, and the next linear's codes again: two right computations differ by about half of what FP8 itself costs.
    The difference between this class and FakeLinear measures that for a model; a right server may differ by PEER times as much."""

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
    """Quantizes like --quantization fp8: BF16 weights to FP8 per channel, activations per token."""
    for parent, name, _, module in linears(model):
        weight = module.weight.detach().bfloat16().float()
        setattr(parent, name, kind(rounded(weight, channel_scales(weight)), "token", module.bias))
    return model


def quantize_head(model):
    """Quantizes like --quantize-lm-head: the head's weight in blocks of 128x128, its input in groups of 128."""
    weight = model.lm_head.weight.detach().bfloat16().float()
    rows, columns = weight.shape
    blocks = torch.nn.functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK)).unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    scales = spread(scale_of(blocks.abs().amax((1, 3))), rows, columns)
    model.lm_head = FakeLinear(rounded(weight, scales), "group")
    return model


class Fp8Cache(DynamicCache):
    """Rounds keys (after rotation) and values to FP8. `scales` has (k, v) of each layer; missing ones are 1."""

    def __init__(self, scales=None):
        super().__init__()
        self.scales = scales or {}

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        k, v = self.scales.get(layer_idx, (1.0, 1.0))
        return super().update(rounded(key_states, torch.tensor(k, device=key_states.device)),
                              rounded(value_states, torch.tensor(v, device=key_states.device)), layer_idx, *args, **kwargs)
