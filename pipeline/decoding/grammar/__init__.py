"""Grammars over token ids: what an output may consist of, checked on the nodes of a draft tree.

    guide      what a request asks for: JSON schema, regular expression, EBNF, choice, structural tag
    translation, endless    the same as a grammar; JSON schemas that no finite output matches
    compiler   guide -> matcher, in worker threads, with limits, behind a check in a process of its own
    matcher    where one output stands in its grammar; cuts and extends draft trees
    masks      the permitted tokens after each node of a tree, computed while the target's pass runs

The library llguidance parses the grammars and computes the masks (docs/decisions/042).
"""
