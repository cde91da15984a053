"""The Hugging Face ``Trainer`` with private steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from sparsedp.accounting import PrivacyStatement
from sparsedp.core.defaults import default_delta
from sparsedp.core.extras import require
from sparsedp.selection import DPSGD, Selection
from sparsedp.training.engine import PrivacyEngine
from sparsedp.training.loader import examples_in
from sparsedp.training.private import Private

require("transformers")

import transformers  # noqa: E402

_IGNORED = -100
"""The label of a token that has no loss, in Hugging Face's data collators."""


class PrivateTrainer(transformers.Trainer):
    """Trains as ``transformers.Trainer`` does, every step private; ``statement()`` says what was spent.

    Guarantee: that of ``PrivacyEngine.make_private_with_epsilon`` for the steps that ``args`` plan. A step takes a
    Poisson batch of ``per_device_train_batch_size * gradient_accumulation_steps`` expected examples, in pieces of at
    most ``per_device_train_batch_size``; ``args.max_grad_norm`` is the clipping norm of an example's gradient. The
    loss is the mean over examples, and of a text's tokens the mean within the example. Training losses are computed
    without noise: they are not logged. What would change the account or needs other examples is refused.

    ``table_learning_rate`` is that of the tables that ``selection`` chooses rows of (plain SGD); all other
    parameters get the optimiser that ``args`` names.
    """

    def __init__(
        self,
        model: nn.Module,
        args: transformers.TrainingArguments,
        *,
        target_epsilon: float,
        target_delta: float | None = None,
        selection: Selection | None = None,
        table_learning_rate: float = 1.0,
        engine: PrivacyEngine | None = None,
        **options: Any,
    ) -> None:
        _check_arguments(args, options)
        self.engine = engine if engine is not None else PrivacyEngine()
        self._selection = selection if selection is not None else DPSGD()
        if self._selection.takes_turns and args.load_best_model_at_end:
            raise ValueError(
                "load_best_model_at_end: rows that wait for their turn are updated after the last step, and would be on "
                "the best model, which is of an earlier one; leave it out, or train without update_every"
            )
        self._table_learning_rate = table_learning_rate
        self._accumulated = args.gradient_accumulation_steps
        args = copy.copy(args)
        args.gradient_accumulation_steps = 1  # a batch's pieces are one step's already
        super().__init__(model=model, args=args, **options)
        if isinstance(self.train_dataset, IterableDataset) or not hasattr(self.train_dataset, "__len__"):
            raise ValueError("train_dataset: must be a map-style dataset with a length, for Poisson sampling")
        self.target_epsilon = target_epsilon
        self.target_delta = (
            default_delta(len(self.train_dataset)) if target_delta is None else target_delta  # type: ignore[arg-type]
        )
        self._private: Private | None = None
        self.model: nn.Module

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Train to the end; the result has no training loss, which would be one without noise.

        With ``update_every`` rows that wait for their turn are updated after the last step: the model is complete when
        this returns, not in the Trainer's own checkpoints and evaluations.
        An interrupted run cannot go on: its account is not in the Trainer's checkpoints.
        """
        if resume_from_checkpoint:
            raise ValueError(
                "resume_from_checkpoint: the Trainer's checkpoints lack the account; write the loop with "
                "PrivacyEngine, and use engine.save and engine.resume"
            )
        if self._private is not None:
            raise ValueError(
                "train: has run; make another PrivateTrainer (with the same engine, to add to its account)"
            )
        try:
            done = super().train(**options)
            self.engine.flush()
        finally:
            self.engine.detach()
        metrics = {name: value for name, value in done.metrics.items() if name != "train_loss"}
        return done._replace(training_loss=math.nan, metrics=metrics)

    def statement(self) -> PrivacyStatement:
        """What was spent, under which adjacency, for which unit, and what was released."""
        return self.engine.statement(self.target_delta)

    @override
    def get_train_dataloader(self) -> Any:
        """Poisson batches, each as the pieces that are in memory at once."""
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")
        size = self.args.per_device_train_batch_size
        batch = min(size * self._accumulated, len(self.train_dataset))  # type: ignore[arg-type]
        steps = math.ceil(len(self.train_dataset) / batch - 1e-6)  # type: ignore[arg-type]
        limit = self.args.max_steps
        self._private = self.engine.make_private_with_epsilon(
            module=self.model,
            optimizer=self._optimizers(),
            data_loader=DataLoader(self.train_dataset, batch_size=batch, collate_fn=collate),  # type: ignore[arg-type]
            target_epsilon=self.target_epsilon,
            target_delta=self.target_delta,
            steps=limit if limit > 0 else math.ceil(self.args.num_train_epochs * steps - 1e-6),
            max_grad_norm=self.args.max_grad_norm,
            selection=self._selection,
            physical_batch_size=size,
        )
        self.optimizer = self._private.optimizer
        return _LogicalBatches(self._private)

    def _optimizers(self) -> list[Optimizer]:
        """The Trainer's own for dense parameters, SGD for the tables that get sparse gradients."""
        if self.optimizer is not None:
            return [self.optimizer]
        tables = (
            [] if isinstance(self._selection, DPSGD) and not self._selection.lazy else _tables(self.model)
        )
        for table in tables:
            table.requires_grad_(False)
        dense = self.create_optimizer()
        for table in tables:
            table.requires_grad_(True)
        rate = self._table_learning_rate
        return [dense, torch.optim.SGD(tables, lr=rate)] if tables else [dense]

    @override
    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run every piece forward and backward; the step itself follows in the Trainer's loop."""
        assert self._private is not None
        model.train()
        for piece in inputs:
            if examples_in(piece):
                self.compute_loss(model, self._prepare_inputs(piece)).backward()
        return torch.zeros(())

    @override
    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean over examples of each example's own loss."""
        if "labels" not in inputs:
            raise ValueError(
                "labels: a batch has none; name the labels 'labels' in the dataset or data_collator"
            )
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        if not hasattr(outputs, "logits"):
            raise ValueError(
                f"model: {type(model).__name__} returns no logits; override compute_loss to return the mean of the "
                "examples' own losses"
            )
        loss = example_losses(model, outputs.logits, inputs["labels"]).mean()
        return (loss, outputs) if return_outputs else loss

    @override
    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """One logical batch."""
        return [next(epoch_iterator)], None

    @override
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what may be shown: no training loss, but epsilon so far."""
        shown = {
            name: value for name, value in logs.items() if name not in ("loss", "train_loss", "grad_norm")
        }
        if self._private is not None and self._private.optimizer.steps_taken:
            spent = self.engine.statement(self.target_delta)
            shown[f"epsilon ({spent.terms})"] = spent.epsilon
        super().log(shown, start_time)

    @override
    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: a batch arrives in pieces."""
        return 0

    @override
    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Examples are clipped, not their sum."""

    @override
    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """There is no gradient before the step."""


class _LogicalBatches:
    """A loader whose batches are iterators over their pieces."""

    def __init__(self, private: Private) -> None:
        self._private = private
        self.dataset = private.data_loader.dataset
        self.batch_size = None

    def __len__(self) -> int:
        return len(self._private.data_loader)

    def __iter__(self) -> Iterator[Iterator[Any]]:
        pieces = iter(self._private.data_loader)
        for first in pieces:
            yield self._pieces(first, pieces)

    def _pieces(self, piece: Any, others: Iterator[Any]) -> Iterator[Any]:
        """The pieces of one batch; each but the last is added up when the next is asked for."""
        optimizer = self._private.optimizer
        while True:
            yield piece
            if optimizer.is_last_piece:
                return
            optimizer.step()
            piece = next(others)


def example_losses(model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    """One loss per example: cross entropy (squared error for one output), over tokens the mean within the example."""
    if logits.dim() == 2 and logits.shape[1] == 1:
        return mse_loss(logits.squeeze(1), labels.to(logits.dtype), reduction="none")
    if logits.dim() == 2 and labels.dim() == 1:
        return cross_entropy(logits, labels, reduction="none")
    if logits.dim() != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            f"labels: of shape {list(labels.shape)} for logits of shape {list(logits.shape)}: PrivateTrainer knows one "
            "label a text, or one a token; override compute_loss to return the mean of the examples' own losses"
        )
    if _is_causal(model):
        logits, labels = logits[:, :-1], labels[:, 1:]
    each = cross_entropy(logits.mT, labels, reduction="none", ignore_index=_IGNORED)
    return each.sum(1) / (labels != _IGNORED).sum(1).clamp(min=1)


def _is_causal(model: nn.Module) -> bool:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return type(base).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def _tables(model: nn.Module) -> list[nn.Parameter]:
    """The trained weights that only embeddings use."""
    layers = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    weights = [layer.get_parameter("weight") for layer in layers]
    others = {
        id(parameter)
        for module in model.modules()
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False)
    }
    return [weight for weight in weights if weight.requires_grad and id(weight) not in others]


def _check_arguments(args: transformers.TrainingArguments, options: Mapping[str, Any]) -> None:
    """Refuse what a private step cannot do, by name."""
    refused = {
        "fp16": (args.fp16, "GradScaler skips steps depending on the data; train in float32"),
        "bf16": (
            args.bf16,
            "a mean loss in bfloat16 lets an example move the others' gradients; use float32",
        ),
        "neftune_noise_alpha": (
            args.neftune_noise_alpha,
            "scales noise by the length of the batch's longest text; leave it out",
        ),
        "group_by_length": (
            getattr(args, "group_by_length", False)  # transformers 4
            or getattr(args, "train_sampling_strategy", "random") not in ("random", "sequential"),
            "a step's examples are a Poisson sample; sort the dataset by length instead",
        ),
        "label_smoothing_factor": (args.label_smoothing_factor, "is not done here; leave it out"),
        "auto_find_batch_size": (args.auto_find_batch_size, "would start again after steps that were spent"),
        "deepspeed": (args.deepspeed, "gathers gradients by itself; train on one device"),
        "fsdp": (args.fsdp, "shards parameters that clipping must see whole; train on one device"),
        "torch_compile": (args.torch_compile, "hides the layers from clipping; leave it out"),
        "n_gpu": (args.n_gpu > 1, "DataParallel splits the batch; train on one device"),
        "world_size": (args.world_size > 1, "averages unclipped gradients; train in one process"),
        "include_num_input_tokens_seen": (
            args.include_num_input_tokens_seen not in (False, "no"),
            "counts the private texts' tokens without noise; leave it out",
        ),
        "compute_loss_func": (
            options.get("compute_loss_func"),
            "may divide by what other examples hold; override compute_loss",
        ),
        "model_init": (options.get("model_init"), "makes a model for each trial; give the model"),
    }
    for name, (given, reason) in refused.items():
        if given:
            raise ValueError(f"{name}: {reason}")
    if not args.max_grad_norm > 0:
        raise ValueError(
            f"max_grad_norm: is the clipping norm of an example, and must be positive; got {args.max_grad_norm}"
        )
