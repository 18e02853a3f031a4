"""What users put into their jobs, as each version of PBS prints it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.sources.schedulers.availability import PlannedStart, UnreadableError
from malletrain.scavenger.sources.schedulers.pbs_json import parse_jobs, parse_reservations, parse_vnodes, read_jobs
from malletrain.scavenger.sources.schedulers.tolerant_json import MAX_DEPTH, read_answer

TEN = 1893492000.0
START = "Tue Jan  1 10:00:00 2030"
BIG = PlannedStart("21.head", TEN, ("n1",))
SECOND = PlannedStart("22.head", TEN, ("n2",))

# Each as it stands behind the colon: PBS's own JSON up to 23.06, by cJSON since.
ODD_VALUES = {
    "no zero": ".5",
    "no digit after the point": "5.",
    "leading zeros": "005",
    "minus zeros": "-00",
    "zeros and a fraction": "00.5",
    "plus": "+5",
    "hexadecimal": "0x1F",
    "hexadecimal with exponent": "0x1.8p3",
    "infinite": "inf",
    "infinity": "-Infinity",
    "no number": "nan",
    "no number with a payload": "nan(0x1)",
    "beyond floating point": "1e999",
    "spaces": " 5 ",
    "nothing": "",
    "more digits than Python reads": "9" * 5000,
    "lone backslash": r'"SITE\ute"',
    "backslash before what JSON knows": r'"\home\new"',
    "backslash and apostrophe": r'"it\'s"',
    "escaped comma": r'"a\,b"',
    "backslash at the end": '"C:\\"',
    "two backslashes at the end": '"C:\\\\"',
    "three backslashes at the end": '"C:\\\\\\"',
    "raw tab": '"a\tb"',
    "raw escape": '"a\x1b[31mb"',
    "raw NUL": '"a\0b"',
    "quotes": '"say "hi" now"',
    "a quote at the begin": '""hi"',
    "a quote at the end": '"hi""',
    "quotes and a comma": '"say "hi", then"',
    "a function of a shell": r'"() {  eval `/usr/bin/modulecmd bash \$*`;\n if [ "$x" = "y" ]; then :; fi\n}"',
    "an object": '{"a":{"b":[1,{"c":2}]}}',
    "deeper than Python reads": "[" * 5000 + "]" * 5000,
    "objects deeper than Python reads": '{"a":' * 5000 + "1" + "}" * 5000,
    "half of a surrogate": r'"\ud800"',
    "escaped quotes": r'"\"},\"30.head\":{\"job_state\":\"Q\""',
}


def compact(variable: str, more: str = "") -> str:
    """An answer in one line, in which a variable of job 20 has a value."""
    return (
        '{"timestamp":1893456000,"pbs_version":"23.06.06","pbs_server":"head","Jobs":{"20.head":{"Job_Name":"fit",'
        f'"job_state":"R","Variable_List":{{"ODD":{variable}}}}},"21.head":{{"Variable_List":{{"A":{variable},"B":"b"}}'
        f',"job_state":"Q","estimated":{{"exec_vnode":"(n1:ncpus=8)","start_time":"{START}"}}}}{more}}}}}'
    )


def by_pbs_itself(*variables: str) -> str:
    """The same by lines, as PBS up to 23.06 writes it; each variable with its name."""
    lines = ",\n".join(f"                {entry}" for entry in variables)
    return (
        '{\n    "timestamp":1893456000,\n    "pbs_version":"19.1.3",\n    "pbs_server":"head",\n    "Jobs":{\n'
        f'        "20.head":{{\n            "Job_Name":"fit",\n            "job_state":"R",\n'
        f'            "Variable_List":{{\n{lines}\n            }}\n        }},\n        "21.head":{{\n'
        f'            "job_state":"Q",\n            "Variable_List":{{\n{lines}\n            }},\n'
        f'            "estimated":{{\n                "exec_vnode":"(n1:ncpus=8)",\n'
        f'                "start_time":"{START}"\n            }},\n            "project":"_pbs_project_default"\n'
        "        }\n    }\n}\n"
    )


def text(value: str) -> str:
    """The same as `qstat -f -w` prints it."""
    return (
        f"Job Id: 20.head\n    Job_Name = fit\n    job_state = R\n    Variable_List = ODD={value},PBS_O_HOST=head\n\n"
        f"Job Id: 21.head\n    job_state = Q\n    Variable_List = A={value},B=b\n"
        f"    estimated.exec_vnode = (n1:ncpus=8)\n    estimated.start_time = {START}\n    project = p\n\n"
    )


@pytest.mark.parametrize("value", ODD_VALUES.values(), ids=ODD_VALUES)
def test_what_a_user_chooses_hides_no_planned_start(value: str) -> None:
    assert parse_jobs(compact(value)) == (BIG,)
    assert parse_jobs(by_pbs_itself(f'"ODD":{value}', '"B":"b"')) == (BIG,)
    assert parse_jobs(text(value.strip('"'))) == (BIG,)


def test_several_odd_values_in_one_answer() -> None:
    odd = [value for name, value in ODD_VALUES.items() if "deeper" not in name]
    listed = ",".join(f'"V{number}":{value}' for number, value in enumerate(odd))
    assert parse_jobs(compact(f'1,{listed},"W":""')) == (BIG,)
    assert parse_jobs(by_pbs_itself(*(f'"V{number}":{value}' for number, value in enumerate(odd)))) == (BIG,)


@pytest.mark.parametrize("name", ['A"B', "A\\", 'A":"1","C', "A B", "", 'BASH_FUNC_x()"'])
def test_names_of_variables_are_as_free_as_their_values(name: str) -> None:
    assert parse_jobs(compact(f'.5,"{name}":"1"')) == (BIG,)
    assert parse_jobs(by_pbs_itself(f'"{name}":"1"', f'"{name}":.5')) == (BIG,)


def test_a_value_keeps_its_text() -> None:
    answer = read_answer(compact("005"))
    assert answer["Jobs"]["20.head"]["Variable_List"] == {"ODD": "005"}
    answer = read_answer(compact(r'"C:\x\\\"\u0041\n' '\\"'))
    assert answer["Jobs"]["20.head"]["Variable_List"]["ODD"] == 'C:\\x\\"A\n\\'


FORGED = (
    '"}},"22.head":{"job_state":"Q","estimated":{"exec_vnode":"(n2:ncpus=8)",'
    f'"start_time":"{START}"}},"Variable_List":{{"X":"'
)


def test_a_value_can_not_add_a_job_to_an_answer() -> None:
    # Since 2024 quotes are escaped, before that a value is within its line.
    escaped = json.dumps(FORGED)
    assert parse_jobs(compact(f'{escaped},"Z":.5')) == (BIG,)
    assert parse_jobs(compact(f'{escaped},"Z":"say "hi""')) == (BIG,)
    assert parse_jobs(by_pbs_itself(f'"A":"x{FORGED}y"', '"B":.5')) == (BIG,)
    assert parse_jobs(by_pbs_itself('"A":"x","job_state":"Q"')) == (BIG,)
    lines = f"\n\nJob Id: 22.head\n    job_state = Q\n    estimated.start_time = {START}\n"
    printed = f"{lines}    estimated.exec_vnode = (n2:ncpus=8)".replace("\n", "\\n")
    assert parse_jobs(text(printed)) == (BIG,)


@pytest.mark.parametrize("end", ["\r", "\v", "\x1c", "\x85", "\u2028"])
def test_only_a_line_break_ends_a_line_of_text(end: str) -> None:
    forged = f"x{end}Job Id: 22.head{end}    job_state = Q{end}    estimated.start_time = {START}"
    assert parse_jobs(text(forged)) == (BIG,)
    assert parse_jobs(text(f"x{end}    job_state = F")) == (BIG,)


def test_what_comes_first_of_a_job_counts() -> None:
    listed = text("1").replace("    project = p\n", "    job_state = F\n    estimated.start_time = UNKNOWN\n")
    assert parse_jobs(listed) == (BIG,)


def test_damage_in_one_job_leaves_the_others() -> None:
    second = f',"22.head":{{"job_state":"Q","estimated":{{"exec_vnode":"(n2)","start_time":"{START}"}}}}'
    for damage in ("}", "]", '"a "}} b"', "{"):
        assert SECOND in parse_jobs(compact("1", f',"30.head":{{"A":{damage} x{second}'))


def test_an_estimate_that_can_not_be_read_is_left_out() -> None:
    listed = text("1") + (
        "Job Id: 22.head\n    job_state = Q\n    estimated.start_time = UNKNOWN\n    estimated.exec_vnode = (n2)\n\n"
        "Job Id: 23.head\n    job_state = Q\n    estimated.start_time = soon\n    estimated.exec_vnode = (n2)\n\n"
    )
    assert parse_jobs(listed) == (BIG,)
    with pytest.raises(UnreadableError, match="soon"):
        parse_jobs(listed.replace(START, "soon"))


def test_text_of_another_form_is_refused() -> None:
    for strange in ("Job Id: 20.head\n    job_state = Q", "qstat: no contact\n", "[]", "{}", '{"Jobs": {}}'):
        with pytest.raises(UnreadableError):
            read_jobs(strange, ("job_state",))
    assert read_jobs("", ("job_state",)) == {}
    assert read_jobs('{"pbs_version": "23"}', ("job_state",)) == {}


@pytest.mark.parametrize("cut", [20, 120, 200, 280])
@pytest.mark.parametrize("form", [compact, lambda value: by_pbs_itself(f'"ODD":{value}')])
def test_json_that_is_cut_short_is_refused(form: Callable[[str], str], cut: int) -> None:
    with pytest.raises(UnreadableError):
        parse_jobs(form(".5")[:cut])


HOSTILE = {
    "quotes": '"' * 200_000,
    "backslashes": "\\" * 200_000,
    "escaped quotes": '\\"' * 100_000,
    "quotes and spaces": ('"' + " " * 98) * 2_000,
    "members": '","' * 70_000,
    "names of members": ('","' + "a" * 255) * 800,
    "names of jobs": ',"1.a":{' * 25_000,
    "digits": ',"' + "1" * 200_000,
    "brackets": "[" * 200_000,
    "braces": '{"a":' * 40_000,
    "closed": '"},' * 70_000,
    "colons": '":' * 100_000,
    "spaces": " " * 200_000,
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_long_values_are_read_in_one_go(value: str) -> None:
    """Work that grows by the square of their length would take minutes here."""
    assert parse_jobs(by_pbs_itself(f'"A":"{value}"')) == (BIG,)
    assert parse_jobs(text(value)) == (BIG,)
    for answer in (compact(value), compact(f'"{value}"')):
        try:
            assert set(parse_jobs(answer)) <= {BIG}
        except UnreadableError:
            continue


@given(value=st.text(alphabet='"\\{}[]:,. a1\n0'))
def test_no_value_changes_what_comes_before_it_or_breaks_the_reader(value: str) -> None:
    for answer in (compact(value), compact(f'"{value}"'), by_pbs_itself(f'"A":"{value}"'), text(value)):
        try:
            found = read_jobs(answer, ("job_state", "Job_Name"))
        except UnreadableError:
            continue
        assert found["20.head"]["Job_Name"] == "fit"
        assert found["20.head"]["job_state"] == "R"


@given(value=st.text())
def test_whatever_stands_in_a_value_of_text_stays_there(value: str) -> None:
    assert parse_jobs(text(value.replace("\n", "\\n"))) == (BIG,)


@given(value=st.text(alphabet=st.characters(exclude_characters="\n\f\b\r\t")))
def test_whatever_stands_in_a_value_of_pbss_own_json_stays_there(value: str) -> None:
    assert parse_jobs(by_pbs_itself(f'"A":"{value}"')) == (BIG,)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_what_is_json_is_read_as_json(value: object) -> None:
    expected = json.loads(json.dumps(value), parse_int=lambda digits: int(digits) if len(digits) <= 18 else digits)
    assert read_answer(json.dumps({"a": value})) == {"a": expected}
    # The tolerant reader, too: only the number sends it there.
    assert read_answer(json.dumps({"a": value}, ensure_ascii=False)[:-1] + ',"b":005}') == {"a": expected, "b": "005"}


def test_what_is_nested_too_deep_is_read_over() -> None:
    deep = json.dumps([])
    for _ in range(MAX_DEPTH + 3):
        deep = f'{{"a":{deep}}}'
    assert read_answer(f'{{"deep":{deep},"b":.5}}')["b"] == ".5"


@pytest.mark.parametrize("value", [*ODD_VALUES.values()], ids=ODD_VALUES)
def test_a_comment_of_a_node_changes_no_node(value: str) -> None:
    comment = value if value.startswith('"') else f'"{value}"'
    vnodes = (
        f'"n1":{{"state":"free","resources_available":{{"host":"n1","ncpus":8}},"comment":{comment},"license":"l"}},'
        f'"n2":{{"state":"job-busy","comment":{comment},"jobs":["1.head"]}},"n3":{{"state":"free"}}'
    )
    states = parse_vnodes(f'{{"timestamp":1,"pbs_version":"18.1","nodes":{{{vnodes}}}}}')
    assert states.idle == {"n1", "n3"}
    assert states.known == {"n1", "n2", "n3"}


def test_a_damaged_answer_about_nodes_is_no_answer() -> None:
    with pytest.raises(UnreadableError):
        parse_vnodes('{"pbs_version":"18.1","nodes":{"n1":{"state":"free"},"n1[1]" "state":"offline"}}}')


def test_a_user_can_not_move_a_reservation() -> None:
    own = (
        "Resv ID: R1.head\nreserve_start = Tue Jan  1 10:00:00 2030\nreserve_end = Tue Jan  1 11:00:00 2030\n"
        "resv_nodes = (n1:ncpus=8)\nVariable_List = A=x\nreserve_start = Tue Jan  1 10:30:00 2030\n"
        "reserve_end = Tue Jan  1 10:31:00 2030\n\n"
    )
    (found,) = parse_reservations(own)
    assert (found.start, found.end, found.nodes) == (TEN, TEN + 3600, ("n1",))
    # One that can't be read keeps its nodes from being used, as they name it.
    assert parse_reservations(own + "Resv ID: R2.head\nreserve_start = soon\nreserve_end = later\n") == (found,)
    with pytest.raises(UnreadableError):
        parse_reservations("Resv ID: R2.head\nreserve_start = soon\nreserve_end = later\n")
