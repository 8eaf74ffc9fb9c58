"""A small text classifier: mean of embeddings, a hidden layer, logits. What it computes, tests/test_package.py computes again."""
import torch

VOCABULARY, WIDTH, CLASSES = 50, 32, 4


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES)
        # Weights that need no random numbers, so that another program can make them, too.
        with torch.no_grad():
            for number, weight in enumerate(self.parameters()):
                weights = torch.arange(weight.numel(), dtype=torch.float64) * (number + 1)
                weight.copy_(torch.sin(weights).reshape(weight.shape))

    def forward(self, ids, mask):
        wanted = mask.unsqueeze(-1).to(torch.float32)
        mean = (self.embedding(ids) * wanted).sum(1) / wanted.sum(1).clamp(min=1)
        hidden = torch.tanh(self.hidden(mean))
        return self.head(hidden), hidden


def package():
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=1, max=128)
    both = {0: batch, 1: length}
    # As many as make the compiler share a loop among threads: an index that is not checked beforehand would end the process there.
    return {"module": Classifier(), "outputs": ["logits", "hidden"], "dynamic": {"ids": both, "mask": both},
            "inputs": {"ids": torch.zeros(64, 128, dtype=torch.int64), "mask": torch.ones(64, 128, dtype=torch.bool)}}
