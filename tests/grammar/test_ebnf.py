import re
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepinfer.errors import RequestError
from deepinfer.grammar import Constraint, Limits
from deepinfer.grammar.ebnf import translate_ebnf
from deepinfer.grammar.ebnf.parse import parse_ebnf
from deepinfer.grammar.ebnf.tree import Alt, Chars, Literal, Node, Ref, Repeat, Seq
from tests.grammar.schemas import as_text, random_text
from tests.grammar.vocabularies import compiled, encode, refusal_of, satisfies, tiny_vocabulary

IDS = {"a": 0, "b": 1, "(": 2, ")": 3}
MOST = 4
TEXTS = ["".join(chars) for length in range(MOST + 1) for chars in product("ab()", repeat=length)]

NAMES = ("root", "x", "y")
PARTS = st.recursive(
    st.sampled_from(
        ['"a"', '"b"', '"ab"', '"ba"', "[ab]", "[^a]", '"("', '")"', '""', "root", "x", "y", "x"]
    ),
    lambda inner: (
        st.lists(inner, min_size=2, max_size=3).map(" ".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        )
    ),
    max_leaves=7,
)
SOURCES = st.tuples(PARTS, PARTS, PARTS).map(
    lambda bodies: "\n".join(f"{n} ::= {b}" for n, b in zip(NAMES, bodies, strict=True))
)


def texts_of(source: str) -> frozenset[str]:
    """All texts of at most `MOST` characters of `ab()` that a grammar derives, by definition."""
    bodies = parse_ebnf(source, Limits()).bodies
    known: dict[str, frozenset[str]] = dict.fromkeys(bodies, frozenset())
    while (new := {name: _texts(body, known) for name, body in bodies.items()}) != known:
        known = new
    return known["root"]


def _texts(node: Node, known: dict[str, frozenset[str]]) -> frozenset[str]:
    match node:
        case Literal(text):
            return frozenset([text] if len(text) <= MOST else [])
        case Chars(ranges, negated):
            return frozenset(
                c for c in "ab()" if any(low <= ord(c) <= high for low, high in ranges) != negated
            )
        case Ref(name):
            return known[name]
        case Alt(items):
            return frozenset().union(*(_texts(item, known) for item in items))
        case Seq(items):
            found = frozenset([""])
            for item in items:
                found = _joined(found, _texts(item, known))
            return found
        case Repeat(item, least, most):
            one, power, found = _texts(item, known), frozenset([""]), frozenset()
            for count in range((least + MOST if most is None else most) + 1):
                found |= power if count >= least else frozenset()
                power = _joined(power, one)
            return found
    raise AssertionError(node)


def _joined(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    return frozenset(a + b for a in left for b in right if len(a + b) <= MOST)


# In the first three the longest match of one token is not what the text means; in the last the
# tokens of two rules are awaited at once.
@given(SOURCES)
@example('root ::= ("b" ("" | [^a]) root{2})?')
@example('root ::= (root* | root) | (("b"){1,2}){2}')
@example('root ::= y{2}\nx ::= root | "" | y{2}\ny ::= x [ab]{1,2}')
@example('root ::= x | y\nx ::= "a" x "b" | "a"\ny ::= "aa" y "a" | "ab"')
def test_texts_accepted_are_exactly_those_derived(source):
    if refusal := refusal_of(Constraint("ebnf", source), tiny_vocabulary()):
        assert "never ends" in refusal
        return
    grammar = compiled(Constraint("ebnf", source), tiny_vocabulary())
    wanted = texts_of(source)
    got = {text for text in TEXTS if satisfies(grammar, [IDS[char] for char in text])}
    assert got == wanted


JSON = r"""
root   ::= object                          # the well-known JSON grammar, in our own words
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n]+ "\\n"\n'
CHESS = r"""
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (JSON, ['{"a": [1, 2.5e3, true], "b": {"c": "x\\n"}}\n', "{}"], ['{"a" 1}', "[]", '{"a":']),
        (ARITHMETIC, ["a+(b*2)=3\n", "(a+b)*c=3\nx = y\n", "x=1\n\n"], ["a+=3\n", "x=1", "(a=b\n"]),
        (LIST, ["- one\n- two\n"], ["one\n", "- one"]),
        (CHESS, ["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O exd5\n9. a8=Q+ Qh1#\n"], ["1. e4 e5\n", "e4"]),
        ('root ::= "日本" [ぁ-ん]{2}', ["日本あん"], ["日本"]),
        (r'root ::= "\x41\u00e4\U0001F600"', ["Aä😀"], ["A"]),
        ("root ::= [^]", ["\n", "日"], [""]),
        ("root ::= .{2}", ["\n."], ["."]),
        ('root ::= "a" # "b"\n | "c"\n\n\nother ::= root', ["a", "c"], ["b"]),
        ('root ::= rest-of.it_1\nrest-of.it_1 ::= (\n"a"\n|\n"b"\n)', ["a", "b"], ["ab"]),
        ('root ::= (ws "x")*\nws ::= ([ \\t] ws)?', ["", " \t x", "xx"], [" "]),
    ],
)
def test_well_known_grammars_accept_what_they_should(source, good, bad):
    grammar = compiled(Constraint("ebnf", source))
    assert [text for text in good if not satisfies(grammar, encode(text))] == []
    assert [text for text in bad if satisfies(grammar, encode(text))] == []


def test_tokens_are_not_split_without_need():
    # Two kinds of comma and the blanks behind them must be; strings and numbers stay whole.
    terminals = re.findall(r"(?m)^T\d+: .*$", translate_ebnf(JSON, Limits()))
    assert len(terminals) == 12
    assert len(re.findall(r"(?m)^T\d+: .*$", translate_ebnf(CHESS, Limits()))) == 1


@given(st.integers(0, 1 << 30))
@settings(max_examples=10)
def test_generated_text_of_a_recursive_grammar_is_derived(seed):
    grammar = compiled(Constraint("ebnf", ARITHMETIC))
    ids = random_text(grammar.matcher(), seed, most=60)
    if ids is not None:
        text = as_text(ids)
        assert satisfies(grammar, encode(text))
        for line in text.split():
            left = line.partition("=")[0]
            assert left.count("(") == left.count(")")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("root ::= x", "rule 'x' is not defined (position 9, line 1"),
        ('root ::= "a', "never closed with a quote (position 9"),
        ("root ::= [a", "never closed with ] (position 9"),
        ("root ::= []", "no character is in it"),
        ("root ::= [b-a]", "the range ends before it starts (position 10"),
        ('root ::= ("a"', "this bracket is never closed (position 9"),
        ('root ::= "a")', "never opened (position 12"),
        ("root ::= root", "rule 'root' never ends"),
        ('root ::= "a" x\nx ::= "b" x', "rule 'root' never ends"),
        ('root ::= "a" | x\nx ::= "b" x', "rule 'x' never ends: no text fits (position 17, line 2"),
        ('root ::= "a"\nroot ::= "b"', "defined twice (position 13, line 2"),
        ('a ::= "b"', "no rule called root"),
        ("", "no rule called root"),
        ('"a"', "a rule such as name ::= ... was expected here (position 0"),
        ('root ::= TagDispatch("a")', "macro"),
        ('root ::= (?= "a") "b"', "look-ahead"),
        ('root ::= "a"{,}', "a count such as"),
        ('root ::= "a"{3,2}', "at least 3 but at most 2"),
        ('root ::= "a"{1000000}', "a count of more than 100000"),
        ("root ::= <think>", "starts nothing"),
        (r'root ::= "\q"', r"the escape \q is unknown (position 11"),
        (r'root ::= "\x4"', "needs 2 digits"),
        (r'root ::= "\ud800"', "needs 4 digits"),
        ("root ::= " + "(" * 300 + '"a"' + ")" * 300, "more than 64 nested groups"),
        ('root ::= "a"' + "?" * 300, "more than 64 repeats"),
        ("\n".join(f'r{i} ::= "a"' for i in range(1001)), "more than 1000 rules"),
    ],
)
def test_broken_grammars_are_refused_with_position_and_reason(source, says):
    with pytest.raises(RequestError) as refusal:
        translate_ebnf(source, Limits())
    assert says in str(refusal.value)


@given(st.text('root::= ab()[]{}|*+?"\\-^#.,12\n', max_size=40).map(lambda text: "root ::=" + text))
def test_any_text_is_compiled_or_refused(source):
    refusal = refusal_of(Constraint("ebnf", source), tiny_vocabulary())
    assert not refusal or refusal.startswith("ebnf")
