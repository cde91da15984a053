"""Array types by their size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U16 = NDArray[np.uint16]
U64 = NDArray[np.uint64]
Bools = NDArray[np.bool_]
