"""The Hugging Face Trainer with private steps: the same step as the engine's, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.language import VOCABULARY, encoder, gpt2, padded, reviews, table_of, tokenizer
from torch.nn.functional import cross_entropy

import sparsedp as sdp
from sparsedp.data import Sentences, tokenize

transformers = pytest.importorskip("transformers")

from sparsedp.training.hugging_face import PrivateTrainer, example_losses  # noqa: E402

N = 40


class Reviews(torch.utils.data.Dataset[Any]):
    def __init__(self, count: int = N) -> None:
        texts, labels = zip(*reviews(count), strict=True)
        self._data = tokenize(Sentences(texts, None, labels), tokenizer())

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> dict[str, Any]:
        item = self._data[number]
        return {name: values.tolist() for name, values in item.items()}


def arguments(folder: Path, **changes: Any) -> Any:
    options = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 5,
        "num_train_epochs": 2.0,
        "learning_rate": 0.01,
        "max_grad_norm": 0.5,
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        **changes,
    }
    return transformers.TrainingArguments(**options)


def trainer(folder: Path, model: Any = None, selection: Any = None, **changes: Any) -> PrivateTrainer:
    options = changes.pop("options", {})
    return PrivateTrainer(
        model or encoder("bert"),
        arguments(folder, **changes),
        target_epsilon=4.0,
        selection=selection,
        engine=sdp.PrivacyEngine(seed=1),
        train_dataset=Reviews(),
        data_collator=transformers.DataCollatorWithPadding(tokenizer()),
        **options,
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_it_trains_privately_and_says_what_it_spent(tmp_path: Path, sparse: bool) -> None:
    model = encoder("bert")
    selection = sdp.AdaFEST(always_on_rows=16) if sparse else None  # positions are always on
    made = trainer(tmp_path, model, selection)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    done = made.train()
    assert math.isnan(done.training_loss)
    assert "train_loss" not in done.metrics
    assert made.state.global_step == 4
    statement = made.statement()
    assert 3.8 <= statement.epsilon <= 4.0
    assert statement.delta == pytest.approx(1 / (10 * N))
    after = model.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before if "query.weight" in name)
    shown = [set(line) for line in made.state.log_history]
    assert all("loss" not in line and "train_loss" not in line for line in shown)
    assert all(f"epsilon ({statement.terms})" in line for line in shown)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_step_is_the_engines_step(tmp_path: Path) -> None:
    """The same seed, batches and noise: the weights after two steps are the same."""
    found, wanted = encoder("bert"), encoder("bert")
    made = trainer(tmp_path, found, num_train_epochs=1.0, lr_scheduler_type="constant", optim="sgd")
    made.train()
    engine = sdp.PrivacyEngine(seed=1)
    collate = transformers.DataCollatorWithPadding(tokenizer())
    private = engine.make_private_with_epsilon(
        module=wanted,
        optimizer=torch.optim.SGD(wanted.parameters(), lr=0.01),
        data_loader=torch.utils.data.DataLoader(Reviews(), batch_size=20, collate_fn=collate),
        target_epsilon=4.0,
        target_delta=1 / (10 * N),
        steps=2,
        max_grad_norm=0.5,
        physical_batch_size=4,
    )
    for piece in private.data_loader:
        labels = piece.pop("labels")
        cross_entropy(wanted(**piece).logits, labels).backward()
        private.optimizer.step()
    for name, value in wanted.state_dict().items():
        assert torch.allclose(value, found.state_dict()[name], atol=1e-6), name


def test_pieces_are_never_larger_than_the_device_takes(tmp_path: Path) -> None:
    made = trainer(tmp_path, num_train_epochs=1.0)
    sizes = []
    step = made.compute_loss

    def spied(model: Any, inputs: Any, **options: Any) -> Any:
        sizes.append(len(inputs["labels"]))
        return step(model, inputs, **options)

    made.compute_loss = spied  # type: ignore[method-assign]
    made.train()
    assert max(sizes) == 4
    assert len(sizes) > 4


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_causal_model_trains(tmp_path: Path, side: str) -> None:
    """Padded on the left, GPT-2's positions would begin with the pads, and so depend on the longest text."""
    made = tokenizer()
    made.padding_side = side
    texts = [{"input_ids": made(text)["input_ids"]} for text, _ in reviews(N)]
    private = PrivateTrainer(
        gpt2(),
        arguments(tmp_path, num_train_epochs=1.0),
        target_epsilon=4.0,
        train_dataset=texts,  # type: ignore[arg-type]
        data_collator=transformers.DataCollatorForLanguageModeling(made, mlm=False),
    )
    if side == "left":
        with pytest.raises(ValueError, match=r"'transformer.h.0.ln_1'.*longest text"):
            private.train()
    else:
        private.train()
        assert private.statement().epsilon <= 4.0


def test_a_causal_model_has_the_mean_over_an_examples_own_tokens() -> None:
    model = gpt2()
    texts = [torch.tensor([5, 6, 7, 8]), torch.tensor([9, 10])]
    batch = padded(texts, 0)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    losses = example_losses(model, model(**batch).logits, labels)
    for text, loss in zip(texts, losses, strict=True):
        want = model(input_ids=text.unsqueeze(0), labels=text.unsqueeze(0)).loss
        assert torch.allclose(loss, want, atol=1e-5)


def test_losses_of_other_tasks() -> None:
    model, logits = encoder("bert"), torch.randn(3, 4, 5)
    labels = torch.tensor([[1, -100, 2, 0], [-100] * 4, [4, 4, 4, 4]])
    each = example_losses(model, logits, labels)
    assert torch.allclose(each[2], cross_entropy(logits[2], labels[2]))
    assert each[1] == 0
    scores = torch.randn(3, 1)
    assert torch.allclose(example_losses(model, scores, torch.ones(3)), (scores[:, 0] - 1) ** 2)
    with pytest.raises(ValueError, match=r"labels: of shape .* override compute_loss"):
        example_losses(model, logits, torch.zeros(3, dtype=torch.int64))


def test_tables_get_an_optimiser_of_their_own(tmp_path: Path) -> None:
    model = encoder("bert")
    made = trainer(tmp_path, model, sdp.FEST({table_of(model): range(5, VOCABULARY)}, always_on_rows=16))
    dense, tables = made._optimizers()
    assert isinstance(tables, torch.optim.SGD)
    assert len(tables.param_groups[0]["params"]) == 3
    held = {id(p) for group in dense.param_groups for p in group["params"]}
    assert not held & {id(p) for p in tables.param_groups[0]["params"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_grad_norm": 0.0}, "max_grad_norm: is the clipping norm of an example"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor: "),
        ({"bf16": True}, "bf16: a mean loss in bfloat16"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha: .* longest text"),
        ({"train_sampling_strategy": "group_by_length"}, "group_by_length: .* Poisson sample; sort"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size: would start again"),
        ({"options": {"compute_loss_func": print}}, "compute_loss_func: may divide"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen: "),
    ],
)
def test_what_a_private_step_cannot_do_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        trainer(tmp_path, **changes)


def test_a_delta_of_zero_is_refused_not_replaced(tmp_path: Path) -> None:
    options = {"train_dataset": Reviews(), "data_collator": transformers.DataCollatorWithPadding(tokenizer())}
    made = PrivateTrainer(
        encoder("bert"), arguments(tmp_path), target_epsilon=4.0, target_delta=0.0, **options
    )
    with pytest.raises(ValueError, match="delta"):
        made.train()


def test_resuming_and_training_twice_are_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, num_train_epochs=0.5)
    with pytest.raises(ValueError, match=r"resume_from_checkpoint: .* engine.resume"):
        made.train(resume_from_checkpoint=True)
    made.train()
    with pytest.raises(ValueError, match="train: has run"):
        made.train()


def test_batches_without_labels_and_outputs_without_logits_are_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    answers = transformers.BertForQuestionAnswering(encoder("bert").config)
    with pytest.raises(ValueError, match="model: BertForQuestionAnswering returns no logits; override"):
        made.compute_loss(
            answers, {"input_ids": torch.ones(1, 3, dtype=torch.int64), "labels": torch.ones(1)}
        )
    with pytest.raises(ValueError, match="labels: a batch has none"):
        made.compute_loss(made.model, {"input_ids": torch.ones(1, 3, dtype=torch.int64)})


def test_the_best_model_is_not_updated_by_rows_that_wait(tmp_path: Path) -> None:
    model = encoder("bert")
    selection = sdp.FEST({table_of(model): range(9)}, always_on_rows=16, update_every=100)
    with pytest.raises(ValueError, match="load_best_model_at_end: rows that wait"):
        trainer(
            tmp_path,
            model,
            selection,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            options={"eval_dataset": Reviews(8)},
        )
