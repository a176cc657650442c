"""The one custom tool of the Responses protocol: patches to files, as a function with one text.

It does not apply patches.
"""

from __future__ import annotations

from typing import Any, Final

PATCH_TOOL: Final = "apply_patch"
PATCH_DESCRIPTION: Final = """\
Changes files. The input is one patch in this line format:

patch := "*** Begin Patch" file+ "*** End Patch"
file := add | delete | update
add := "*** Add File: " path, then one line "+" text for every line of the new file
delete := "*** Delete File: " path
update := "*** Update File: " path ["*** Move to: " path] hunk+
hunk := "@@" [" " heading] line+ ["*** End of File"]
line := " " text (kept) | "-" text (removed) | "+" text (added)

Every path is relative. Around a change a hunk keeps three lines that do not change, before and \
after it; where these do not make the place clear, the heading names the class or function, and \
several "@@" lines narrow it down further.
"""
PATCH_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "input": {
            "type": "string",
            "description": "The whole patch, from *** Begin Patch to *** End Patch.",
        }
    },
    "required": ["input"],
}
