"""The sliding puzzle: tiles 1 to n²-1 and one gap (0) on a square board, to be slid into order.

A move names the direction in which a tile slides into the gap. The board travels in the metadata, so every step is a
function of its arguments.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from greenroom.environments.interfaces import ItemReturn, ItemwiseEnvironment, Message, MessageLog, Metadata
from greenroom.environments.replies import last_reply, tagged

Board = tuple[tuple[int, ...], ...]

# Where the sliding tile is, seen from the gap: (rows down, columns right).
_TILE_FROM_GAP = {"up": (1, 0), "down": (-1, 0), "left": (0, 1), "right": (0, -1)}
_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}


def solved_board(size: int) -> Board:
    """Return the board in order: 1, 2, … row by row, the gap last."""
    numbers = [*range(1, size * size), 0]
    return tuple(tuple(numbers[row * size : (row + 1) * size]) for row in range(size))


def checked_board(rows: Sequence[Sequence[int]]) -> Board:
    """Return rows as a board.

    Raises:
        ValueError: they are not a square of at least 2×2 that holds each number once.
    """
    board = tuple(tuple(row) for row in rows)
    size = len(board)
    numbers = [number for row in board for number in row]
    if size < 2 or any(len(row) != size for row in board) or sorted(numbers) != list(range(size * size)):
        raise ValueError("the board is not a square that holds each number once")
    return board


def slide(board: Board, direction: str) -> Board | None:
    """Return the board after a tile slid "up", "down", "left" or "right" into the gap; None when no tile can."""
    if direction not in _TILE_FROM_GAP:
        return None
    size = len(board)
    gap_row, gap_column = next((y, x) for y in range(size) for x in range(size) if board[y][x] == 0)
    down, right = _TILE_FROM_GAP[direction]
    tile_row, tile_column = gap_row + down, gap_column + right
    if not (0 <= tile_row < size and 0 <= tile_column < size):
        return None
    cells = [list(row) for row in board]
    cells[gap_row][gap_column], cells[tile_row][tile_column] = cells[tile_row][tile_column], 0
    return tuple(tuple(row) for row in cells)


def shuffled_board(size: int, moves: int, seed: int) -> Board:
    """Return a solvable board that is not yet solved.

    Args:
        size: rows and columns, at least 2.
        moves: random moves away from the solved board, at least 1; a move is never undone by the next.
        seed: the same seed gives the same board.

    Raises:
        ValueError: a number is too small.
    """
    if size < 2 or moves < 1:
        raise ValueError("a puzzle needs size >= 2 and moves >= 1")
    chance = random.Random(seed)
    start = board = solved_board(size)
    previous, made = "", 0
    # A walk can come back to where it began: then it goes on.
    while made < moves or board == start:
        reachable = [(name, slide(board, name)) for name in _TILE_FROM_GAP if name != _OPPOSITE.get(previous)]
        previous, board = chance.choice([(name, moved) for name, moved in reachable if moved is not None])
        made += 1
    return board


def drawn(board: Board) -> str:
    """Return the board as text: one line a row, the gap as `_`."""
    width = len(str(len(board) ** 2 - 1))
    return "\n".join(" ".join((str(number) if number else "_").rjust(width) for number in row) for row in board)


class SlidingPuzzleEnvironment(ItemwiseEnvironment):
    """Rewards a solved puzzle with 1; an episode ends when the puzzle is solved or its moves are used up.

    A reply makes a move with `<action>up</action>`. A move that is not possible leaves the board and is counted.

    Args:
        size: rows and columns of new puzzles, at least 2.
        shuffle_moves: random moves that a new puzzle is away from the solution.
        max_moves: how many moves an episode may take.
    """

    STOP_STRINGS = ("</action>",)

    def __init__(self, *, size: int = 3, shuffle_moves: int = 20, max_moves: int = 50) -> None:
        self.size = size
        self.shuffle_moves = shuffle_moves
        self.max_moves = max_moves

    def new_episode(self, seed: int) -> tuple[Message, Metadata]:
        """Return a new puzzle's first message and its metadata (`board`, `moves`); the same seed gives the same one."""
        board = shuffled_board(self.size, self.shuffle_moves, seed)
        text = (
            "Slide the tiles into order, row by row, the gap (_) last. Answer with the direction in which a tile "
            f"slides into the gap: <action>up</action>, down, left or right.\n{drawn(board)}"
        )
        return Message(role="user", content=text), {"board": [list(row) for row in board], "moves": 0}

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Make one move (see `ItemwiseEnvironment.step_item`).

        Raises:
            KeyError: the metadata has no `board` or no `moves`.
            ValueError: there is no reply, or `board` is no board.
        """
        board = checked_board(metadata["board"])
        moves = int(metadata["moves"]) + 1
        action = tagged(last_reply(message_log), "action")
        moved = slide(board, action.lower()) if action else None
        board = moved or board
        solved = board == solved_board(len(board))
        text = "Solved." if solved else "" if moved else "This move is not possible."
        return ItemReturn(
            observation=f"{text}\n{drawn(board)}".strip("\n"),
            reward=1.0 if solved else 0.0,
            terminated=solved or moves >= self.max_moves,
            metadata={"board": [list(row) for row in board], "moves": moves},
            next_stop_strings=self.STOP_STRINGS,
            answer=action,
        )
