# The loop of the Python peers: what `process.rs` describes, around the three functions of the library's own file.
import sys


def serve(load, check, measure, alive=lambda: True):
    for line in sys.stdin:
        try:
            word, rest = line.strip().split(" ", 1)
            if word == "load":
                kind, shape, path = rest.split(" ", 2)
                answer = f"ok {load(kind, tuple(map(int, shape.split('x'))), path)}"
            else:
                argument, call = rest.split(" ", 1)
                work = eval("lambda x: " + call, globals())
                if word == "check":
                    check(work).tofile(argument)
                    answer = "ok"
                else:
                    answer = str(round(measure(work, int(argument), call)))
        except Exception as e:
            answer = "error " + (" ".join(str(e).split()) or type(e).__name__)
        print(answer, flush=True)
        # After a fault on a device nothing runs in this process any more: another is started.
        if answer.startswith("error") and not alive():
            return
