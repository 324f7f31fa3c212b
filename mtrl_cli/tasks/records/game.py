"""The records office: find the wrong invoice of one customer, correct it, submit.

Four tables. A customer has orders, an order names an item and a quantity, an item has a price,
and every order has an invoice, whose amount is quantity times price. One invoice of the customer
in question is wrong, and so is one of somebody else, which is not to be touched. Names are not
unique; the city tells customers apart. An episode's reward is 1 when the office is submitted with
exactly the one invoice corrected, else 0.

Everything follows from the seed. It runs in a sandbox too: nothing but the standard library, from
Python 3.8 on.
"""

from __future__ import annotations

import random
from typing import Any

TABLES: dict[str, tuple[str, ...]] = {
    "customers": ("id", "name", "city"),
    "orders": ("id", "customer", "item", "quantity"),
    "prices": ("id", "price"),
    "invoices": ("id", "order", "amount"),
}

MOST_ROWS = 12
"""Rows that one answer shows."""

_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn")
_CITIES = ("Bern", "Lyon", "Oslo", "Rome")
_ITEMS = ("bolt", "cable", "fuse", "gear", "lamp", "pump", "rope", "valve")


class Office:
    """The tables of one seed, and what was done to them."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"records/{seed}")
        names = [rng.choice(_NAMES) for _ in range(4)]
        names[rng.randrange(1, 4)] = names[0]
        cities = rng.sample(_CITIES, 4)
        self.tables: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
        self.tables["prices"] = [{"id": item, "price": rng.randint(2, 19)} for item in _ITEMS]
        customers = [
            {"id": f"C{number + 1}", "name": names[number], "city": cities[number]}
            for number in range(4)
        ]
        owners = [customer["id"] for customer in customers for _ in range(rng.randint(2, 3))]
        rng.shuffle(owners)
        for number, owner in enumerate(owners):
            order = {
                "id": f"O{number + 11}",
                "customer": owner,
                "item": rng.choice(_ITEMS),
                "quantity": rng.randint(2, 9),
            }
            self.tables["orders"].append(order)
            self.tables["invoices"].append(
                {"id": f"I{number + 31}", "order": order["id"], "amount": self.due(order)}
            )
        self.customer = customers[0]
        rng.shuffle(customers)
        self.tables["customers"] = customers
        mine = [row for row in self.tables["invoices"] if self._owner(row) == self.customer["id"]]
        others = [row for row in self.tables["invoices"] if row not in mine]
        wrong = rng.choice(mine)
        self.right = {"id": wrong["id"], "amount": wrong["amount"]}
        for row in (wrong, rng.choice(others)):
            row["amount"] += rng.choice((-1, 1)) * rng.randint(1, row["amount"] // 2)
        self._expected = [
            dict(row, amount=self.right["amount"]) if row["id"] == self.right["id"] else dict(row)
            for row in self.tables["invoices"]
        ]
        self.over = False

    def due(self, order: dict[str, Any]) -> int:
        """What an order costs."""
        price = next(row["price"] for row in self.tables["prices"] if row["id"] == order["item"])
        return int(order["quantity"] * price)

    def _owner(self, invoice: dict[str, Any]) -> str:
        orders = self.tables["orders"]
        return str(next(row["customer"] for row in orders if row["id"] == invoice["order"]))

    def brief(self) -> str:
        """What is asked for, in words."""
        name, city = self.customer["name"], self.customer["city"]
        return f"One invoice of {name} in {city} is wrong. Correct its amount, then submit."

    def find(self, table: str, column: str, value: str) -> str:
        """The rows of a table whose column holds a value; every row for the value ``*``."""
        if table not in TABLES:
            return f"There is no table {table}."
        if column not in TABLES[table]:
            return f"The columns of {table} are {', '.join(TABLES[table])}."
        rows = [row for row in self.tables[table] if value in ("*", str(row[column]))]
        if not rows:
            return f"No row of {table} has {column} {value}."
        lines = [" ".join(f"{key}={row[key]}" for key in TABLES[table]) for row in rows]
        left = len(lines) - MOST_ROWS
        return "\n".join(lines[:MOST_ROWS] + ([f"({left} more)"] if left > 0 else []))

    def correct(self, invoice: str, amount: int) -> str:
        """Write an invoice's amount."""
        for row in self.tables["invoices"]:
            if row["id"] == invoice:
                before, row["amount"] = row["amount"], amount
                return f"{invoice}: amount {amount}, was {before}."
        return f"There is no invoice {invoice}."

    def submit(self) -> float:
        """End the episode; its reward."""
        self.over = True
        return 1.0 if self.tables["invoices"] == self._expected else 0.0


class Desk:
    """An office behind one ``act`` for all tools; what a backend speaks to."""

    def __init__(self) -> None:
        self.office: Office | None = None

    def open(self, seed: int) -> str:
        self.office = Office(seed)
        return self.office.brief()

    def act(self, tool: str, arguments: dict[str, Any]) -> tuple[str, float, bool]:
        """Execute a tool: the answer, the reward, whether the episode is over.

        Raises:
            RuntimeError: no episode is running.
            ValueError: there is no such tool.
        """
        office = self.office
        if office is None or office.over:
            raise RuntimeError("no office is open: reset the environment before the first action")
        if tool == "find":
            return office.find(**arguments), 0.0, False
        if tool == "correct":
            return office.correct(**arguments), 0.0, False
        if tool == "note":
            return "Noted.", 0.0, False
        if tool == "submit":
            reward = office.submit()
            return f"Submitted: {'right' if reward else 'wrong'}.", reward, True
        raise ValueError(f"there is no tool {tool!r}")
