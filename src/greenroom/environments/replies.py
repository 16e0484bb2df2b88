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
    blocks = re.findall(r"^```[^\n`]*\n(.*?)^```[ \t]*$", reply, flags=re.DOTALL | re.MULTILINE)
    return str(blocks[-1]) if blocks else reply


def tagged(reply: str, tag: str) -> str | None:
    """Return the stripped text in the last `<tag>…</tag>`; a missing end tag (a stop string) is fine. None: no tag."""
    start = reply.rfind(f"<{tag}>")
    if start < 0:
        return None
    return reply[start + len(tag) + 2 :].split(f"</{tag}>")[0].strip()


def boxed_answers(reply: str) -> list[str]:
    r"""Return the contents of each outermost, complete `\boxed{…}` in order; braces inside may nest."""
    answers = []
    position = 0
    while (start := reply.find(r"\boxed{", position)) >= 0:
        position = start + len(r"\boxed{")
        end = _closing_brace(reply, position)
        if end is not None:
            answers.append(reply[position:end])
            position = end
    return answers


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    escaped = False
    for index in range(start, len(text)):
        character = text[index]
        if escaped:  # \{ and \} are printed braces, they group nothing
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return index
    return None
