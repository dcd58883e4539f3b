"""What programs do with psycopg 3, one feature a function.

Everything that an answer holds is printed, and the transcript is compared with that of one PostgreSQL server, so
nothing here prints an OID that a user's object has, a time or a process id.

usage: by_psycopg.py DSN
"""

import contextlib
import datetime
import decimal
import enum
import sys
import threading
import uuid

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.composite import CompositeInfo, register_composite
from psycopg.types.enum import EnumInfo, register_enum
from psycopg.types.json import Jsonb

DSN = sys.argv[1]


def title(text):
    print(f"== {text}")


def show(cursor):
    columns = [(c.name, c.type_code, c.internal_size) for c in cursor.description or []]
    rows = cursor.fetchall() if cursor.description else None
    print(f"  {cursor.statusmessage!r} rowcount {cursor.rowcount} {columns} {rows}")


def failing(what, run):
    """Runs what must fail, and prints the error as a program would look at it."""
    try:
        run()
        print(f"  {what}: no error")
    except psycopg.Error as error:
        diag = error.diag
        print(
            f"  {what}: {type(error).__name__} {error.sqlstate} {diag.message_primary!r} "
            f"table {diag.table_name!r} column {diag.column_name!r} constraint {diag.constraint_name!r}"
        )
    except ValueError as error:
        # The program's own, which newer versions pass on instead of what the server made of it.
        print(f"  {what}: ValueError {error}")


def simple_queries(conn):
    title("simple queries")
    cursor = psycopg.ClientCursor(conn)
    for query, values in [
        ("CREATE SCHEMA psycopg", None),
        ("SET search_path = psycopg", None),
        ("CREATE TABLE t (id serial PRIMARY KEY, name text UNIQUE, data jsonb, seen timestamptz)", None),
        ("INSERT INTO t (name, data) VALUES (%s, %s) RETURNING id, name", ("Ada", Jsonb({"a": [1, None]}))),
        ("INSERT INTO t (name) VALUES (%s), (%s)", ("O'Brien", "back\\slash")),
        ("SELECT id, name, data FROM t ORDER BY id", None),
        ("SELECT %s::text || %s", ("per%cent", "ü")),
    ]:
        cursor.execute(query, values)
        show(cursor)
    cursor.execute("SELECT 1; SELECT 2 AS two; UPDATE t SET seen = NULL")
    show(cursor)
    while cursor.nextset():
        show(cursor)


def parameters(conn):
    title("parameters, text and binary")
    values = [
        1,
        2**40,
        -(2**70),
        1.5,
        float("inf"),
        True,
        None,
        "text",
        b"\x00\xff",
        decimal.Decimal("12345.6789"),
        datetime.date(2001, 2, 3),
        datetime.datetime(2001, 2, 3, 4, 5, 6, 789),
        datetime.datetime(2001, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc),
        datetime.timedelta(days=3, seconds=7),
        uuid.UUID(int=7),
        [1, 2, None],
        ["a", "b,c", '"'],
        Jsonb({"k": "v"}),
    ]
    for binary in (False, True):
        for value in values:
            placeholder = "%b" if binary and not isinstance(value, (Jsonb,)) else "%s"
            cursor = conn.cursor(binary=binary)
            try:
                cursor.execute(f"SELECT {placeholder} AS value", (value,))
                print(" ", binary, repr(cursor.fetchone()[0]))
            except psycopg.errors.IndeterminateDatatype as error:
                print(" ", binary, error.sqlstate)
                conn.rollback()
    cursor = conn.cursor(row_factory=dict_row)
    cursor.execute("SELECT id, name FROM t WHERE name = ANY(%s) ORDER BY id", (["Ada", "O'Brien"],))
    print(" ", cursor.fetchall())
    cursor.execute(sql.SQL("SELECT {} FROM {} WHERE id = %s").format(sql.Identifier("name"), sql.Identifier("t")), (1,))
    print(" ", cursor.fetchall())


def prepared(conn):
    title("server-side prepared statements")
    for round in range(8):
        cursor = conn.execute("SELECT name FROM t WHERE id = %s", (round % 4,), prepare=round == 0 or None)
        print(" ", cursor.fetchall())
    conn.prepare_threshold = 0
    for value in (10, 11, "x"):
        failing(f"insert {value!r}", lambda: conn.execute("INSERT INTO t (id) VALUES (%s::int)", (value,)))
    # A statement that is prepared goes on after definitions have changed.
    cursor = conn.execute("SELECT id, name FROM t WHERE id = %s", (1,))
    print(" ", cursor.fetchall())
    conn.execute("ALTER TABLE t ADD COLUMN more int DEFAULT 7")
    cursor = conn.execute("SELECT id, name FROM t WHERE id = %s", (1,))
    print(" ", cursor.fetchall())
    failing("select * before", lambda: print(" ", len(conn.execute("SELECT * FROM t WHERE id = 1").fetchall()[0])))
    conn.execute("ALTER TABLE t DROP COLUMN more")
    names = conn.execute("SELECT count(*) FROM t").fetchone()
    print(" ", names)
    conn.prepare_threshold = 5


def pipelines(conn):
    title("pipeline mode")
    with conn.pipeline() as pipeline:
        first = conn.execute("INSERT INTO t (id, name) VALUES (%s, %s) RETURNING id", (20, "twenty"))
        second = conn.execute("SELECT name FROM t WHERE id = %s", (20,))
        print(" ", first.fetchone(), second.fetchone())
        third = conn.execute("SELECT count(*) FROM t WHERE id >= 20")
        pipeline.sync()
        print(" ", third.fetchone())
    title("an error inside a pipeline")

    def broken():
        with conn.pipeline():
            conn.execute("INSERT INTO t (id) VALUES (21)")
            conn.execute("SELECT 1 / %s", (0,))
            conn.execute("INSERT INTO t (id) VALUES (22)")

    failing("pipeline", broken)
    show(conn.execute("SELECT id FROM t WHERE id > 20"))
    with conn.pipeline(), conn.transaction():
        conn.execute("INSERT INTO t (id) VALUES (23)")
        conn.execute("INSERT INTO t (id) VALUES (24)")
    show(conn.execute("SELECT id FROM t WHERE id > 20 ORDER BY id"))
    title("executemany")
    cursor = conn.cursor()
    cursor.executemany(
        "INSERT INTO t (id, name) VALUES (%s, %s) RETURNING id", [(n, f"n{n}") for n in range(100, 400)], returning=True
    )
    ids = [cursor.fetchone()[0]]
    while cursor.nextset():
        ids.append(cursor.fetchone()[0])
    print(" ", cursor.rowcount, ids == list(range(100, 400)))
    failing("executemany", lambda: conn.cursor().executemany("INSERT INTO t (id) VALUES (%s)", [(500,), (501,), (500,)]))
    show(conn.execute("SELECT count(*) FROM t WHERE id >= 500"))


def copies(conn):
    title("copy")
    conn.execute("CREATE TABLE c (id int PRIMARY KEY, name text, at date)")
    rows = [(1, "one", datetime.date(2001, 1, 1)), (2, None, None), (3, "tab\tnewline\nback\\", None)]
    cursor = conn.cursor()
    with cursor.copy("COPY c FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    print(" ", cursor.statusmessage, cursor.rowcount)
    with cursor.copy("COPY c FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(["int4", "text", "date"])
        for number in range(10, 2000):
            copy.write_row((number, f"row {number}" * 10, None))
    print(" ", cursor.statusmessage, cursor.rowcount)
    with cursor.copy("COPY (SELECT * FROM c WHERE id < 12 ORDER BY id) TO STDOUT") as copy:
        for row in copy.rows():
            print("   ", row)
    with cursor.copy("COPY (SELECT id, name FROM c ORDER BY id) TO STDOUT (FORMAT binary)") as copy:
        copy.set_types(["int4", "text"])
        print(" ", sum(row[0] for row in copy.rows()))
    with cursor.copy("COPY c (id, name) TO STDOUT (FORMAT csv)") as copy:
        print(" ", sum(len(block) for block in copy))

    def duplicate():
        with conn.cursor().copy("COPY c (id) FROM STDIN") as copy:
            copy.write("5000\n1\n")

    failing("copy of a key that is there", duplicate)

    def gives_up():
        with conn.cursor().copy("COPY c (id) FROM STDIN") as copy:
            copy.write("5001\n")
            raise ValueError("no more")

    failing("given up", gives_up)
    show(conn.execute("SELECT count(*), max(id) FROM c"))


def named_cursors(conn):
    title("named cursors")
    with conn.transaction():
        with conn.cursor("big") as cursor:
            cursor.itersize = 100
            cursor.execute("SELECT id FROM c WHERE id >= %s ORDER BY id", (10,))
            print(" ", sum(row[0] for row in cursor))
        with conn.cursor("scroll", scrollable=True) as cursor:
            cursor.execute("SELECT id FROM c ORDER BY id")
            print(" ", cursor.fetchmany(3))
            cursor.scroll(-2)
            print(" ", cursor.fetchone())
            cursor.scroll(100, mode="absolute")
            print(" ", cursor.fetchone())
        with conn.cursor("binary", binary=True) as cursor:
            cursor.execute("SELECT at FROM c WHERE id = 1")
            print(" ", cursor.fetchall())

    def without_transaction():
        with conn.cursor("alone") as cursor:
            cursor.execute("SELECT 1")

    failing("outside a transaction", without_transaction)


def transactions():
    title("transactions and savepoints")
    with psycopg.connect(DSN, options="-c search_path=psycopg") as conn:
        conn.execute("INSERT INTO t (id) VALUES (600)")
        print(" ", conn.info.transaction_status.name)
        with conn.transaction():
            conn.execute("INSERT INTO t (id) VALUES (601)")
            try:
                with conn.transaction() as inner:
                    conn.execute("INSERT INTO t (id) VALUES (602)")
                    conn.execute("INSERT INTO t (id) VALUES (600)")
            except psycopg.errors.UniqueViolation as error:
                print("  inner:", error.diag.message_detail)
            with conn.transaction() as inner:
                conn.execute("INSERT INTO t (id) VALUES (603)")
                raise psycopg.Rollback(inner)
            with conn.transaction(savepoint_name="kept"):
                conn.execute("INSERT INTO t (id) VALUES (604)")
        show(conn.execute("SELECT id FROM t WHERE id >= 600 ORDER BY id"))
        failing("in a transaction", lambda: conn.execute("SELECT 1 / 0"))
        print(" ", conn.info.transaction_status.name)
        failing("after it failed", lambda: conn.execute("SELECT 1"))
        conn.rollback()
        show(conn.execute("SELECT id FROM t WHERE id >= 600 ORDER BY id"))
        conn.rollback()
        conn.execute("INSERT INTO t (id) VALUES (605), (606)")
        conn.commit()
        conn.read_only = True
        failing("read only", lambda: conn.execute("DELETE FROM t"))
        conn.rollback()
        conn.read_only = None
        for level in psycopg.IsolationLevel:
            conn.isolation_level = level
            show(conn.execute("SELECT id FROM t WHERE id >= 600 ORDER BY id"))
            conn.commit()


def serialization():
    title("serialization failures are retried")
    options = "-c search_path=psycopg"
    with psycopg.connect(DSN, options=options) as conn:
        conn.execute("CREATE TABLE counters (id int PRIMARY KEY, total int NOT NULL)")
        conn.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 3) g")
    with psycopg.connect(DSN, options=options) as one, psycopg.connect(DSN, options=options) as other:
        one.isolation_level = other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        seen = one.execute("SELECT total FROM counters WHERE id = 1").fetchone()[0]
        other.execute("UPDATE counters SET total = total + 10 WHERE id = 1")
        other.commit()
        try:
            one.execute("UPDATE counters SET total = %s WHERE id = 1", (seen + 1,))
            one.commit()
            print("  a lost update was not noticed")
        except psycopg.errors.SerializationFailure as error:
            print(" ", error.sqlstate)
            one.rollback()

    def add(times):
        with psycopg.connect(DSN, options=options) as conn:
            conn.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            for _ in range(times):
                while True:
                    try:
                        with conn.transaction():
                            total = conn.execute("SELECT total FROM counters WHERE id = 2").fetchone()[0]
                            conn.execute("UPDATE counters SET total = %s WHERE id = 2", (total + 1,))
                        break
                    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                        pass

    threads = [threading.Thread(target=add, args=(25,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with psycopg.connect(DSN, options=options) as conn:
        show(conn.execute("SELECT * FROM counters ORDER BY id"))


def cancels(conn):
    title("cancel")
    running = threading.Event()
    # A request that arrives before its query cancels nothing, so it is made again until it does.
    def cancel():
        while not running.wait(0.2):
            conn.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    failing("sleep", lambda: conn.execute("SELECT pg_sleep(300)"))
    running.set()
    thread.join()
    for _ in range(20):
        try:
            conn.execute("SELECT 1")
            break
        except psycopg.errors.QueryCanceled:
            pass
    show(conn.execute("SELECT 'still here'"))


def errors(conn):
    title("errors")
    conn.execute("CREATE TABLE e (id int PRIMARY KEY, t int REFERENCES t, n int NOT NULL CHECK (n > 0))")
    for query in [
        "INSERT INTO e VALUES (1, 1, NULL)",
        "INSERT INTO e VALUES (1, 1, 0)",
        "INSERT INTO e VALUES (1, 99999, 1)",
        "INSERT INTO t (id) VALUES (1)",
        "SELECT * FROM nowhere",
        "SELECT nothing FROM t",
        "SELECT nofunction(1)",
        "SELEC 1",
        "SELECT 'x'::int",
        "SELECT 2000000000 + 2000000000",
        "CREATE TABLE t (id int)",
        "DROP TABLE nowhere",
        "SELECT 1 FROM t GROUP BY name HAVING id > 1",
    ]:
        failing(query, lambda: conn.execute(query))


def types_of_users(conn):
    title("types of users")
    # A server counts what is rolled back, too: behind onecopy, ids that come later differ between servers.
    for _ in range(4):
        with conn.transaction(force_rollback=True):
            conn.execute("CREATE TYPE undone AS ENUM ('x')")
    conn.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad')")
    conn.execute("CREATE TYPE place AS (street text, mood mood)")
    conn.execute("CREATE TABLE moods (id serial PRIMARY KEY, m mood, ms mood[], c place)")
    Mood = enum.Enum("Mood", ["sad", "ok", "glad"])
    options = "-c search_path=psycopg"
    # The types are looked up once, inside a transaction, and known by their ids on all connections.
    with psycopg.connect(DSN, options=options) as first:
        mood, place = EnumInfo.fetch(first, "mood"), CompositeInfo.fetch(first, "place")
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(psycopg.connect(DSN, options=options)) for _ in range(6)]
        for other in others:
            register_enum(mood, other, Mood)
            register_composite(place, other)
        for binary in ["%b", "%t"]:
            for other in others:
                insert = f"INSERT INTO moods (m, ms, c) VALUES ({binary}, %t, %t)"
                other.execute(insert, (Mood.ok, [Mood.sad, Mood.glad], place.python_type("here", Mood.sad)))
                other.commit()
        known = set()
        for _ in range(5):
            for other in others:
                cursor = other.execute("SELECT m, ms, c FROM moods WHERE m = %s AND id > %s", (Mood.ok, 0))
                known.update(c.type_code in (mood.oid, mood.array_oid, place.oid) for c in cursor.description)
                for row in cursor:
                    known.add(f"{row}")
                cursor = other.cursor(binary=True).execute("SELECT max(m) FROM moods")
                known.add(f"{cursor.fetchone()}")
                other.commit()
    print(" ", sorted(map(str, known)))


def main():
    # Tests stand or fall by what the server answers, not by the machine's time zone.
    with psycopg.connect(DSN, autocommit=True, options="-c TimeZone=UTC") as conn:
        simple_queries(conn)
        parameters(conn)
        prepared(conn)
        pipelines(conn)
        copies(conn)
        named_cursors(conn)
        types_of_users(conn)
        transactions()
        serialization()
        cancels(conn)
        errors(conn)
        conn.execute("SET client_min_messages = warning")
        conn.execute("DROP SCHEMA psycopg CASCADE")
    print("all done")


main()
