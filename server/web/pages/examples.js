/** Prompts that the bundled model answers well. Other models can do with them too. */

const CLASS = `class Ticket:
    """A ticket with price, seat and paid."""

    def __init__(self, price: int, seat: int, paid: bool) -> None:
        self._price = price
        self._seat = seat
        self._paid = paid

    @property
    def price(self) -> int:
        return self._price

    @price.setter
    def price(self, value: int) -> None:
        if value < 0:
            raise ValueError("price must not be negative")
        self._price = value

`;

const TESTS = `class TestTicket(unittest.TestCase):
    def setUp(self) -> None:
        self.ticket = Ticket(price=12, level=3, rank=1)

    def test_price(self) -> None:
        self.ticket.price = 32
        self.assertEqual(self.ticket.price, 32)

`;

const PROBLEM = `Question: Tom has 12 apples. He buys 30 apples. After that he finds 25 apples. \
Next he gives 14 apples to Rosa. Then he sells 20 apples. How many apples does Tom have now?
Answer:`;

export const EXAMPLES = [
  { label: "A Python class", kind: "completion", prompt: CLASS },
  { label: "A word problem", kind: "completion", prompt: PROBLEM },
  { label: "A story", kind: "chat", prompt: "Tell me a story about a bear." },
  { label: "Unit tests", kind: "completion", prompt: TESTS },
];
