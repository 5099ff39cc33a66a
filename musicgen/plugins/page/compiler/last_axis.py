"""Operations on whole rows of the last axis: softmax and normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from musicgen.plugins.page.compiler.program import Program

if TYPE_CHECKING:
    import onnx

# The maximum m of a row, and s = Σ exp(x − m) of its elements x.
_EXPONENTIALS = "let m=-Infinity,s=0;EACH m=Math.max(m,a[i+j]);EACH s+=Math.exp(a[i+j]-m);"


def softmax(program: Program, node: onnx.NodeProto, axis: int) -> None:
    _each_row(program, node, axis, f"{_EXPONENTIALS}EACH o[i+j]=Math.exp(a[i+j]-m)/s;")


def log_softmax(program: Program, node: onnx.NodeProto, axis: int) -> None:
    _each_row(program, node, axis, f"{_EXPONENTIALS}s=m+Math.log(s);EACH o[i+j]=a[i+j]-s;")


def layer_normalization(
    program: Program, node: onnx.NodeProto, axis: int, epsilon: float, **_: Any
) -> None:
    weights = [program.view(name).buffer for name in node.input[1:]]  # scale, perhaps bias
    scaled = "(a[i+j]-m)*s*b[j]" + ("+c[j]" if len(weights) > 1 else "")
    body = (
        "let m=0,s=0;EACH m+=a[i+j];m/=LENGTH;EACH s+=square(a[i+j]-m);"
        f"s=1/Math.sqrt(s/LENGTH+{epsilon!r});EACH o[i+j]={scaled};"
    )
    _each_row(program, node, axis, body, *weights)


def _each_row(program: Program, node: onnx.NodeProto, axis: int, body: str, *weights: int) -> None:
    """Compile a body for each row of the last axis, from a[i+j] to o[i+j].

    In the body, EACH is a loop over j, and LENGTH the number of elements of a row.
    """
    output, source = program.new_output(node.output[0]), program.dense(node.input[0])
    assert axis in (-1, output.layout.ndim - 1)
    size, length = output.layout.size, str(output.layout.shape[-1])
    body = body.replace("EACH ", "for(let j=0;j<LENGTH;j++)").replace("LENGTH", length)
    text = f"for(let i=0;i<{size};i+={length}){{{body}}}"
    program.call(text, output.buffer, source.buffer, *weights)
