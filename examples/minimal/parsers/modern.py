"""Code that needs marshmallow 4: its context is a context manager."""

from __future__ import annotations

from importlib.metadata import version

from marshmallow import Schema, fields
from marshmallow.experimental.context import Context


class Order(Schema):
    """What somebody wants."""

    item = fields.String()
    count = fields.Method(deserialize="read_count")

    def read_count(self, value: int) -> int:
        """Return a number of things from a number of packs."""
        return value * int(Context.get()["pack"])


class ModernParser:
    """Reads orders with marshmallow 4."""

    def __init__(self) -> None:
        self._schema = Order()

    def parse(self, text: str) -> tuple[str, int]:
        """Return the release of marshmallow and the number of things ordered."""
        with Context({"pack": 6}):
            return version("marshmallow"), self._schema.loads(text)["count"]
