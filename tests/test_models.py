"""Real architectures, tiny: same outputs, gradients, buffers and random numbers; a jitted module is a module."""
import copy

import pytest
import torch
import torch.nn as nn
import torch.utils._pytree as pytree

import tracejit

from cases.compare import equal_bits, near, rounds, tensor_problem

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH = 61, 9


def gpt2():
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config), token_inputs()


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, attention_dropout=0.1)
    return transformers.LlamaForCausalLM(config), token_inputs()


def bert():
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32)
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, 6:] = 0
    return transformers.BertForMaskedLM(config), {**token_inputs(), "attention_mask": mask}


def t5():
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
                                   relative_attention_num_buckets=8, decoder_start_token_id=0, pad_token_id=0)
    return transformers.T5ForConditionalGeneration(config), token_inputs()


def vit():
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                                    image_size=16, patch_size=4, hidden_dropout_prob=0.1, num_labels=5)
    return transformers.ViTForImageClassification(config), image_inputs(16)


def resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=5)
    return transformers.ResNetForImageClassification(config), image_inputs(32)


def token_inputs():
    tokens = (torch.arange(2 * LENGTH) * 7 % VOCABULARY).reshape(2, LENGTH)
    return {"input_ids": tokens, "labels": tokens.flip(0)}


def image_inputs(size):
    pixels = torch.linspace(-1, 1, 2 * 3 * size * size).reshape(2, 3, size, size).sin()
    return {"pixel_values": pixels, "labels": torch.tensor([1, 3])}


class Block(nn.Module):
    def __init__(self, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(width, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class InPlaceResNet(nn.Module):
    """In-place ReLU and residual sum, BatchNorm buffers: the shape of torchvision's."""

    def __init__(self, width=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(Block(width, 1), Block(width, 2))
        self.fc = nn.Linear(width, 5)

    def forward(self, pixel_values, labels):
        x = self.maxpool(self.relu(self.bn1(self.conv1(pixel_values))))
        x = torch.flatten(nn.functional.adaptive_avg_pool2d(self.layers(x), 1), 1)
        logits = self.fc(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def in_place_resnet():
    return InPlaceResNet(), image_inputs(32)


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.layers = kind(6, 5, **options)
        self.head = nn.LazyLinear(VOCABULARY)
        self.head(self.layers(torch.zeros(1, 2, 6))[0])

    def forward(self, input_ids, labels):
        logits = self.head(self.layers(self.embedding(input_ids))[0])
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def lstm():
    return Recurrent(nn.LSTM, num_layers=2, batch_first=True, dropout=0.2, bidirectional=True), token_inputs()


MODELS = [gpt2, llama, bert, t5, vit, resnet, in_place_resnet, lstm, lambda: (Recurrent(nn.GRU, batch_first=True), token_inputs())]
every_model = pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)


def pair(build, training, **options):
    """Two models of the same weights, the second one jitted, and their inputs."""
    torch.manual_seed(0)
    model, inputs = build()
    model.train(training)
    twin = copy.deepcopy(model)
    return model, tracejit.jit(twin, fallback="error", **options), inputs


def assert_same_tensors(want, got, what, values=equal_bits):
    leaves_want, spec_want = pytree.tree_flatten(want)
    leaves_got, spec_got = pytree.tree_flatten(got)
    assert spec_want == spec_got, what
    for i, (a, b) in enumerate(zip(leaves_want, leaves_got, strict=True)):
        if isinstance(a, torch.Tensor):
            problem = tensor_problem(a.detach(), b.detach(), values)
            assert problem is None, f"{what} {i}: {problem}"
        else:
            assert a == b or a is b or type(a) is type(b), f"{what} {i}"


def contents(output):
    return {k: v for k, v in output.items() if v is not None and k != "past_key_values"}


def step(model, inputs, seed):
    torch.manual_seed(seed)
    output = model(**inputs)
    return contents(output), torch.get_rng_state()


@every_model
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("executors", [pytest.param(None, marks=pytest.mark.compiler), pytest.param(["torch"], marks=pytest.mark.full)], ids=["fused", "torch"])
def test_forward_is_as_eager(build, training, executors):
    model, jitted, inputs = pair(build, training, executors=executors)
    with torch.no_grad():
        for call in range(3):
            (want, want_rng), (got, got_rng) = step(model, inputs, call), step(jitted, inputs, call)
            values = near if rounds(jitted) else equal_bits
            assert (values is near) == (executors is None)
            assert_same_tensors(want, got, f"call {call}: output", values)
            assert torch.equal(want_rng, got_rng), f"call {call}: generator"
            assert_same_tensors(dict(model.named_buffers()), dict(jitted.named_buffers()), f"call {call}: buffer", values)
    assert jitted.cache_info().hits >= 1        # the first call of some sets config.problem_type, which is read
    assert jitted.cache_info().fallbacks == 0


each_executor = pytest.mark.parametrize("executors", [None, pytest.param(["torch"], marks=pytest.mark.full)], ids=["fused", "torch"])


def rounded(a, b):
    """As `near`, but a gradient that is zero but for rounding (a key's bias) is as good as another one."""
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6) if a.is_floating_point() else torch.equal(a, b)


@every_model
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@each_executor
def test_gradients_are_as_eager(build, training, executors):
    model, jitted, inputs = pair(build, training, executors=executors)
    values = equal_bits if executors else rounded
    for call in range(2):
        for net in (model, jitted):
            torch.manual_seed(call)
            net.zero_grad()
            net(**inputs)["loss"].backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        assert any(g is not None for g in gradients.values())
        assert_same_tensors(gradients, {name: p.grad for name, p in jitted.named_parameters()}, f"call {call}: grad", values)
        assert_same_tensors(dict(model.named_buffers()), dict(jitted.named_buffers()), f"call {call}: buffer", values)
    assert jitted.replayed_because == ""


@every_model
@each_executor
def test_training_steps_are_as_eager(build, executors):
    model, jitted, inputs = pair(build, True, executors=executors)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in (model, jitted)]
    for call in range(5):
        losses = []
        for net, optimizer in zip((model, jitted), optimizers, strict=True):
            torch.manual_seed(call)
            optimizer.zero_grad()
            losses.append(net(**inputs)["loss"])
            losses[-1].backward()
            optimizer.step()
        assert torch.equal(*losses) if executors else torch.allclose(*losses, rtol=1e-5), f"step {call}"
    assert_same_tensors(model.state_dict(), jitted.state_dict(), "state", equal_bits if executors else rounded)
    assert jitted.replayed_because == ""


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_decoding_with_a_static_cache_is_as_eager():
    torch.manual_seed(0)
    model, _ = llama()
    model.eval()
    twin = copy.deepcopy(model)
    jitted = tracejit.jit(twin, fallback="error")
    caches = [transformers.StaticCache(config=net.config, max_cache_len=16) for net in (model, twin)]
    tokens = [torch.tensor([[3, 1, 4, 1]]), torch.tensor([[3, 1, 4, 1]])]
    position = torch.arange(4)
    with torch.no_grad():
        for i in range(6):
            logits = []
            for which, net in enumerate((model, jitted)):
                out = net(input_ids=tokens[which], past_key_values=caches[which], cache_position=position,
                          position_ids=position[None], use_cache=True)
                logits.append(out.logits[:, -1:])
            assert near(*logits), f"token {i}"
            for a, b in zip(caches[0].layers, caches[1].layers, strict=True):
                assert near(a.keys, b.keys) and near(a.values, b.values), f"cache after token {i}"
            tokens = [x.argmax(-1) for x in logits]
            position = position[-1:] + 1


class Attention(nn.Module):
    """One head that decodes with a preallocated cache, written in place at a tensor position."""

    def __init__(self, width=8, positions=12):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("keys", torch.zeros(1, positions, width))
        self.register_buffer("values", torch.zeros(1, positions, width))

    def forward(self, x, pos):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys[:, pos] = k
        self.values.index_copy_(1, pos, v)
        seen = torch.arange(self.keys.shape[1]) <= pos
        scores = (q @ self.keys.mT).masked_fill(~seen, float("-inf"))
        return scores.softmax(-1) @ self.values


def test_decoding_with_buffers_written_in_place_is_as_eager():
    torch.manual_seed(0)
    model = Attention()
    twin = copy.deepcopy(model)
    jitted = tracejit.jit(twin, fallback="error")
    with torch.no_grad():
        for position in range(8):
            x = torch.full((1, 1, 8), position / 8).sin()
            pos = torch.tensor([position])
            assert near(model(x, pos), jitted(x, pos))
            assert torch.equal(model.keys, twin.keys) and torch.equal(model.values, twin.values)
    assert jitted.cache_info().hits == 7


# ------------------------------------------------------------------ a jitted module is a module

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.label = "tied"

    def forward(self, ids):
        self.calls += 1
        return self.head(self.embedding(ids))

    def double_width(self):
        return 2 * self.embedding.embedding_dim


def ids():
    return torch.tensor([[1, 2, 6]])


def test_it_is_a_module_with_the_same_tensors():
    model = Tied()
    jitted = tracejit.jit(model, fallback="error")
    assert isinstance(jitted, nn.Module)
    assert [name for name, _ in jitted.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert all(a is b for a, b in zip(jitted.parameters(), model.parameters(), strict=True))
    assert all(a is b for a, b in zip(jitted.buffers(), model.buffers(), strict=True))
    assert list(jitted.state_dict()) == list(model.state_dict())
    assert all(a.data_ptr() == b.data_ptr()
               for a, b in zip(jitted.state_dict().values(), model.state_dict().values(), strict=True))
    assert jitted.head.weight is jitted.embedding.weight


def test_attributes_and_methods_are_the_originals():
    model = Tied()
    jitted = tracejit.jit(model, fallback="error")
    assert jitted.label == "tied" and jitted.double_width() == 8
    assert jitted.head is model.head
    with pytest.raises(AttributeError):
        jitted.no_such_attribute  # noqa: B018
    jitted.label = "changed"
    assert model.label == "changed"


def test_train_and_eval_reach_both():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    jitted = tracejit.jit(model, fallback="error")
    x = torch.ones(4, 3)
    jitted.eval()
    assert not model.training and not model[1].training
    assert torch.equal(jitted(x), model[0](x))
    assert jitted.train() is jitted
    assert model.training and model[1].training
    torch.manual_seed(1)
    want = model(x)
    torch.manual_seed(1)
    assert torch.equal(jitted(x), want)


def test_state_dict_round_trip():
    model, other = Tied(), Tied()
    jitted = tracejit.jit(model, fallback="error")
    jitted(ids())
    jitted.load_state_dict(other.state_dict())
    assert torch.equal(jitted(ids()), other(ids()))
    assert torch.equal(model.embedding.weight, other.embedding.weight)


def test_hooks_registered_on_it_run():
    model = nn.Linear(3, 3)
    jitted = tracejit.jit(model, fallback="error")
    want = model(torch.ones(2, 3)) * 2
    handle = jitted.register_forward_hook(lambda module, args, out: out * 2)
    assert torch.equal(jitted(torch.ones(2, 3)), want)
    handle.remove()
    assert torch.equal(jitted(torch.ones(2, 3)), model(torch.ones(2, 3)))


def test_moving_to_another_dtype():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    jitted = tracejit.jit(model, fallback="error")
    assert jitted(torch.ones(2, 3)).dtype == torch.float32
    jitted.to(torch.float64)
    assert model[0].weight.dtype == torch.float64
    assert torch.equal(jitted(torch.ones(2, 3).double()), model(torch.ones(2, 3).double()))


def test_a_deep_copy_is_independent():
    jitted = tracejit.jit(Tied(), fallback="error")
    before = jitted(ids())
    twin = copy.deepcopy(jitted)
    with torch.no_grad():
        twin.embedding.weight.mul_(2)
    assert twin.head.weight is twin.embedding.weight
    assert torch.equal(jitted(ids()), before)
    assert torch.equal(twin(ids()), before * 4)
    assert int(jitted.calls) == 2 and int(twin.calls) == 2


def test_it_nests_within_other_modules():
    inner = nn.Linear(3, 3)
    outer = nn.Sequential(tracejit.jit(inner, fallback="error"), nn.ReLU())
    jitted = tracejit.jit(outer, fallback="error")
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    assert torch.equal(outer(x), inner(x).relu())
    assert torch.equal(jitted(x), inner(x).relu())


def test_original_stays_eager_and_sees_the_training_of_the_wrapped_one():
    model = nn.Linear(3, 1)
    jitted = tracejit.jit(model, fallback="error")
    optimizer = torch.optim.Adam(jitted.parameters(), lr=0.1)
    before = model.weight.clone()
    jitted(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)
    assert torch.equal(jitted(torch.ones(2, 3)), model(torch.ones(2, 3)))
