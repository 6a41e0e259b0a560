"""Models that tests of provenance go through: real definitions from `transformers`, and what they have not."""

from __future__ import annotations

import torch
from torch import nn

WIDTH, LAYERS, VOCABULARY = 32, 2, 50


def tokens():
    torch.manual_seed(0)
    return torch.randint(0, VOCABULARY, (2, 6))


def gpt2():
    transformers = __import__("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=WIDTH, n_layer=LAYERS, n_head=4, use_cache=False
    )
    model, ids = transformers.GPT2LMHeadModel(config), tokens()
    return model, lambda: model(ids, labels=ids).loss


def llama():
    transformers = __import__("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    model, ids = transformers.LlamaForCausalLM(config), tokens()
    return model, lambda: model(ids, labels=ids).loss


def bert():
    transformers = __import__("transformers")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    model, ids = transformers.BertForMaskedLM(config), tokens()
    return model, lambda: model(ids, labels=ids).loss


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += shortcut
        return self.relu(out)


class ResNet(nn.Module):
    """The plan of torchvision's, small."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.layer1 = nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1))
        self.layer2 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(self.pool(self.layer2(self.layer1(self.stem(x)))).flatten(1))


def resnet():
    torch.manual_seed(0)
    model, images = ResNet(), torch.randn(2, 3, 16, 16)
    return model, lambda: nn.functional.cross_entropy(model(images), torch.tensor([1, 3]))


class Tagger(nn.Module):
    """A bidirectional LSTM of two layers over packed sequences."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.lstm = nn.LSTM(8, 12, 2, batch_first=True, bidirectional=True)
        self.cell = nn.LSTMCell(24, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), [6, 4], batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        state = None
        for step in range(out.shape[1]):
            state = self.cell(out[:, step], state)
        return self.head(state[0])


def lstm():
    torch.manual_seed(0)
    model, ids = Tagger(), tokens()
    return model, lambda: model(ids).square().mean()


MODELS = {maker.__name__: maker for maker in (gpt2, llama, bert, resnet, lstm)}
"""Each returns a model and a function that runs a forward and returns the loss."""
