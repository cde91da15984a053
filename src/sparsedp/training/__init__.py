"""Private training: the engine, Poisson loading, the private optimiser, checkpoints."""

from sparsedp.training.engine import PrivacyEngine
from sparsedp.training.last_step import Diagnostics, LastStep
from sparsedp.training.loader import PoissonLoader
from sparsedp.training.monitor import EpsilonMeter, TensorBoardMonitor
from sparsedp.training.optimizer import PrivateOptimizer
from sparsedp.training.private import Private
from sparsedp.training.rowwise_adagrad import RowWiseAdagrad
from sparsedp.training.user_sampler import UserSampler

__all__ = [
    "Diagnostics",
    "EpsilonMeter",
    "LastStep",
    "PoissonLoader",
    "PrivacyEngine",
    "Private",
    "PrivateOptimizer",
    "RowWiseAdagrad",
    "TensorBoardMonitor",
    "UserSampler",
]
