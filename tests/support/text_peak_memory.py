"""Run as a program: the peak of resident memory, in MB, over a step of one logical batch of texts in pieces of 16.

Arguments: the selection and the size of the logical batch.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import peft
import torch
import transformers
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp

ROWS, LENGTH, PIECE = 5000, 64, 16


def peak(selection: str, examples: int) -> float:
    """Two steps on a small BERT with adapters: of 32 examples, then of ``examples``."""
    torch.set_num_threads(1)
    config = transformers.BertConfig(
        vocab_size=ROWS, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
    )
    model = transformers.BertForSequenceClassification(config)
    adapters = peft.LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"])
    model = peft.get_peft_model(model, adapters).train()
    words = model.base_model.model.bert.embeddings.word_embeddings.weight.requires_grad_(True)
    others = [p for p in model.parameters() if p.requires_grad and p is not words]
    ids = torch.randint(1, ROWS, (1024, LENGTH))
    data = TensorDataset(ids, torch.ones_like(ids), torch.randint(0, 2, (1024,)))
    private = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=[torch.optim.Adam(others, lr=0.01), torch.optim.SGD([words], lr=0.1)],
        data_loader=DataLoader(data, batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST() if selection == "adafest" else sdp.DPSGD(),
        physical_batch_size=PIECE,
    )
    private.data_loader.indices = lambda step: np.arange(32 if step == 0 else examples)
    for number, (some, mask, labels) in enumerate(private.data_loader):
        if number == (32 + examples) // PIECE:
            break
        cross_entropy(model(input_ids=some, attention_mask=mask).logits, labels).backward()
        private.optimizer.step()
    assert private.optimizer.steps_taken == 2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(peak(sys.argv[1], int(sys.argv[2])))
