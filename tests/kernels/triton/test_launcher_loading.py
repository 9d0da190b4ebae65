"""Extension modules of one name, as Triton's launchers are, keep apart what they hold."""

from __future__ import annotations

import shutil

import pytest

from kernels.triton.launcher_loading import in_turns

HAS_COMPILER = bool(shutil.which("gcc") or shutil.which("clang"))
SOURCE = """
#include <Python.h>
static PyObject* launch(PyObject* self, PyObject* none) {{ return PyLong_FromLong({number}); }}
static PyMethodDef methods[] = {{ {{"launch", launch, METH_NOARGS, ""}}, {{NULL, NULL, 0, NULL}} }};
static struct PyModuleDef module = {{ PyModuleDef_HEAD_INIT, "octavo_launcher", NULL, -1, methods }};
PyMODINIT_FUNC PyInit_octavo_launcher(void) {{ return PyModule_Create(&module); }}
"""


@pytest.mark.skipif(not HAS_COMPILER, reason="needs a C compiler")
def test_loading_one_again_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import build

    def load(number: int) -> object:
        return build.compile_module_from_src(SOURCE.format(number=number), "octavo_launcher")

    monkeypatch.setattr(build, "_load_module_from_path", in_turns(build._load_module_from_path))
    first, second, first_again = load(1), load(2), load(1)
    assert [module.launch() for module in (first, second, first_again)] == [1, 2, 1]  # type: ignore[attr-defined]
