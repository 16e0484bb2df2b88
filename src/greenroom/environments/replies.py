"""Reading a reply: the last message, its code, its boxed answer, its tagged parts."""

from __future__ import annotations

import re

from greenroom.environments.interfaces import MessageLog


def last_reply(message_log: MessageLog) -> str:
    """Return the text of the conversation's last message.

    Raises:
        ValueError: the conversation is empty or does not end with a reply of the assistant.
    """
    if not message_log or message_log[-1]["role"] != "assistant":
        raise ValueError("the conversation does not end with a reply of the assistant")
    return message_log[-1]["content"]


def fenced_code(reply: str) -> str:
    """Return the last code block between lines of three backticks, or the whole reply when it has none."""
    found = None
    block: list[str] | None = None
    for line in reply.split("\n"):
        if block is None:
            # Only a line that has another after it opens a block; the last one has no content to follow.
            if re.fullmatch(r"```[^`]*", line):
                block = []
        elif re.fullmatch(r"```[ \t]*", line):
            found, block = "".join(f"{each}\n" for each in block), None
        else:
            block.append(line)
    return reply if found is None else found


def tagged(reply: str, tag: str) -> str | None:
    """Return the stripped text in the last `<tag>…</tag>`; a missing end tag (a stop string) is fine. None: no tag."""
    start = reply.rfind(f"<{tag}>")
    if start < 0:
        return None
    return reply[start + len(tag) + 2 :].split(f"</{tag}>")[0].strip()


def boxed_answers(reply: str) -> list[str]:
    r"""Return the contents of each outermost, complete `\boxed{…}` in order; braces inside may nest."""
    opened: list[int] = []
    boxes: list[tuple[int, int]] = []
    escaped = False
    for index, character in enumerate(reply):
        if escaped:  # \{ and \} are printed braces, they group nothing
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            opened.append(index + 1)
        elif character == "}" and opened:
            start = opened.pop()
            if reply.endswith(r"\boxed{", 0, start):
                boxes.append((start, index))
    answers, position = [], 0
    for start, end in sorted(boxes):
        if start >= position:
            answers.append(reply[start:end])
            position = end
    return answers
