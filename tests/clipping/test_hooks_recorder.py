"""How many examples a call holds, and when a call is recorded."""

from __future__ import annotations

import torch
from torch import nn

from sparsedp.clipping.hooks import Recorder


def test_arguments_of_several_sizes_leave_the_number_of_examples_to_the_piece() -> None:
    recorder = Recorder(nn.Linear(1, 1))
    recorder.examples = 4
    recorder.arguments = ((torch.zeros(4, 2), torch.zeros(7)), {})
    assert recorder.batch_size() == 4
    recorder.examples = None
    assert recorder.batch_size() is None
    recorder.arguments = ((torch.zeros(5, 2), torch.tensor(1.0)), {"x": [torch.zeros(5)]})
    assert recorder.batch_size() == 5


def test_a_pause_within_a_pause_does_not_end_it() -> None:
    recorder = Recorder(nn.Linear(1, 1))
    with recorder.paused():
        with recorder.paused():
            assert not recorder.is_recording()
        assert not recorder.is_recording()
    assert recorder.is_recording()
