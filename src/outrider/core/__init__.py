"""The few types every part shares.

Vocabulary follows the field: the *drafter* proposes a `Draft`, the *target* verifies it in one pass, the accepted
prefix is kept and the target adds one token of its own: *recovered* where a draft was refused, *bonus* where all
of the path was accepted. Acceptance length = tokens emitted per target pass.

Nothing here imports torch at run time, so that torch-free parts stay torch-free. What is made for every request in
every step is a NamedTuple: a frozen dataclass takes several times as long to make, and after a pass caches are cold.
"""
