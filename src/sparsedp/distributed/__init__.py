"""The same private step on many processes, over ``torch.distributed``."""

from sparsedp.distributed.cost import StepCost, TableLoad, step_cost
from sparsedp.distributed.embedding import ShardedEmbedding, ShardedEmbeddingBag
from sparsedp.distributed.engine import DistributedEngine
from sparsedp.distributed.exchange import Exchange, PeerLost, Traffic
from sparsedp.distributed.joining import init_processes
from sparsedp.distributed.session import merge_counts
from sparsedp.distributed.shards import RowShards

__all__ = [
    "DistributedEngine",
    "Exchange",
    "PeerLost",
    "RowShards",
    "ShardedEmbedding",
    "ShardedEmbeddingBag",
    "StepCost",
    "TableLoad",
    "Traffic",
    "init_processes",
    "merge_counts",
    "step_cost",
]
