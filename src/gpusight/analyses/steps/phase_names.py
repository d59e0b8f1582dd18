"""Which phase of a step a range is, from its name in any common spelling."""

from __future__ import annotations

import re

PHASES = ("forward", "backward", "optimizer", "data", "communication", "other")
"""Phases of a step, in the order of the codes; `other` is what a capture says is none of them."""

_LONGEST_NAME = 200
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BREAK = re.compile(r"[\W_]+")
# Words are matched in names of lower case with one space between words.
_COMMUNICATION = re.compile(
    r"all ?reduce|all ?gather|reduce ?scatter|all ?(?:to|2) ?all|\ba2 ?a\d*\b|"
    r"broadcast(?! to| tensors)|"
    r"\b[nr]ccl|\bgloo\b|\bmpi\b|\bcomms?\b|communicat|"
    r"(?:sync|reduce|exchange)(?:hroni[sz]e)? (?:model )?grad|"
    r"grad(?:ient)?s? (?:sync|reduc|exchange)|"
    r"halo|\b(?:send|recv|receive)\b|\bp2p\b|\b(?:ddp|fsdp) (?:sync|reduc|comm)"
)
_BACKWARD = re.compile(
    r"backwards?\d*\b|\bbwd|\bbw\b|back ?prop|\bautograd engine\b|\bgradients? comput|"
    r"\bcomput\w* grad"
)
_FORWARD = re.compile(
    r"\bforward|\bfwd|\bfw\b|\binfer(?:ence)?\b|\bpredict|\bprefill|\bdecod(?:e|ing)\b|"
    r"\bgenerat(?:e|ion)\b|\bexecute model\b|\brun model\b|\bmodel run\b|\bloss\b"
)
_OPTIMIZER = re.compile(
    r"\boptimi[sz]er|\boptim\b|\bopt\b|\bzero grads?\b|\bclip\w* grad|\bgrad\w* clip|"
    r"\b(?:lr )?schedulers?\b|\b(?:grad )?scaler\b|\b(?:weight|param(?:eter)?)s? updates?\b|"
    r"\bupdate (?:weight|param)|\bapply grad|\b(?:adam\w?|sgd|lamb|adagrad|adafactor|rmsprop)\b|"
    r"\bema update\b"
)
_DATA = re.compile(
    r"\bdata(?! ?(?:parallel|type))|\bload\w* (?:the )?(?:data|batch|input)|"
    r"\b(?:next|get|fetch|wait)\w*\b.*\bbatch\b|\bbatch generator\b|\bpre ?fetch|\bcollate|"
    r"^inputs?$|\binput (?:pipeline|wait|fetch|copy)|\bto device\b|"
    r"\bh ?(?:to|2) ?d\b|\bhost to device\b|"
    r"\b(?:pre ?process|augment|tokeni[sz])"
)
_PIPELINE = re.compile(r"\(([FBW])\)$")
"""How schedules of pipelines write it: forward, backward of inputs, backward of weights."""
_LIGHTNING = re.compile(r"^\[.*\b(training|validation|test|predict)_step$")
"""Its `training_step` is the forward pass, called by an optimizer's step with a closure."""
_ALL = re.compile(r"with closure")
_OPERATOR = re.compile(r"(?!autograd::engine|FSDP)\w+::")


def phase_of(name: str) -> str | None:
    """Read the phase that a range's name speaks of; None for none, or for more than one."""
    text = name[:_LONGEST_NAME]
    if _OPERATOR.match(text):
        return None
    piped = _PIPELINE.search(text)
    if piped:
        return "forward" if piped.group(1) == "F" else "backward"
    if _LIGHTNING.search(text):
        return "forward"
    plain = _BREAK.sub(" ", _CAMEL.sub(" ", text)).lower().strip()
    if _ALL.search(plain):
        return None
    if _COMMUNICATION.search(plain):
        return "communication"
    back, ahead = _BACKWARD.search(plain), _FORWARD.search(plain)
    if back:
        return None if ahead and "loss" not in ahead.group() else "backward"
    for phase, pattern in (("optimizer", _OPTIMIZER), ("data", _DATA)):
        if pattern.search(plain):
            return phase
    return "forward" if ahead else None
