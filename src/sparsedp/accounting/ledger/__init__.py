"""The ledger: every release is recorded on disk before its result exists."""

from sparsedp.accounting.ledger.ledger import Ledger

__all__ = ["Ledger"]
