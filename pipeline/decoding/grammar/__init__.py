"""Grammars over token ids, checked on the nodes of a draft tree.

    guide      the request's format: JSON schema, regular expression, EBNF, choice, structural tag
    translation, finiteness    guide -> grammar of llguidance; refusal of JSON schemas that no finite output matches
    json_schema    limit of optional properties, and unsupported patterns that may be ignored
    compiler   guide -> matcher, in worker threads, with limits, after a check in a separate process
    matcher    state of one output in its grammar; cuts and extends draft trees
    masks      the permitted tokens after each node of a tree, computed during the target's pass

The library llguidance parses the grammars and computes the masks (docs/decisions/042).
"""
