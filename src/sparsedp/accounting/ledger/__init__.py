"""The ledger: every release is written down, on disk, before its result can be seen."""

from sparsedp.accounting.ledger.ledger import Ledger

__all__ = ["Ledger"]
