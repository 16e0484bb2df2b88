"""Code that nobody has moved from marshmallow 3 yet: schemas of marshmallow 4 take no context."""

from __future__ import annotations

from importlib.metadata import version

from marshmallow import Schema, fields


class Order(Schema):
    """What somebody wants."""

    item = fields.String()
    count = fields.Method(deserialize="read_count")

    def read_count(self, value: int) -> int:
        """Return a number of things from a number of packs."""
        return value * int(self.context["pack"])


class LegacyParser:
    """Reads orders with marshmallow 3."""

    def __init__(self) -> None:
        self._schema = Order(context={"pack": 6})

    def parse(self, text: str) -> tuple[str, int]:
        """Return the release of marshmallow and the number of things ordered."""
        return version("marshmallow"), self._schema.loads(text)["count"]
