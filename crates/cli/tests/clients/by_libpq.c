/* What programs do with libpq, one feature a function. Everything that an answer holds is printed, and the transcript is
 * compared with that of one PostgreSQL server, so nothing here prints an OID, a time or a process id.
 *
 * usage: by_libpq DSN */
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static PGconn *conn;

/* Ends the program when what no server may answer happens. */
static void must(int condition, const char *what)
{
    if (!condition) {
        printf("FAILED: %s: %s", what, PQerrorMessage(conn));
        exit(1);
    }
}

static void notice(void *ignored, const PGresult *res)
{
    (void)ignored;
    printf("  notice %s: %s\n", PQresultErrorField(res, PG_DIAG_SEVERITY), PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY));
}

static void show(PGresult *res)
{
    ExecStatusType status = PQresultStatus(res);
    printf("  %s", PQresStatus(status));
    if (status == PGRES_FATAL_ERROR) {
        printf(" %s %s", PQresultErrorField(res, PG_DIAG_SQLSTATE), PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY));
    } else if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) {
        printf(" [%s] affected '%s' columns %d params %d", PQcmdStatus(res), PQcmdTuples(res), PQnfields(res), PQnparams(res));
    }
    printf("\n");
    for (int column = 0; column < PQnparams(res); column++)
        printf("    $%d type %u\n", column + 1, PQparamtype(res, column));
    for (int column = 0; column < PQnfields(res); column++)
        printf("    %s type %u size %d modifier %d format %d number %d\n", PQfname(res, column), PQftype(res, column),
               PQfsize(res, column), PQfmod(res, column), PQfformat(res, column), PQftablecol(res, column));
    for (int row = 0; row < PQntuples(res); row++) {
        printf("    (");
        for (int column = 0; column < PQnfields(res); column++) {
            const char *value = PQgetvalue(res, row, column);
            if (column)
                printf(", ");
            if (PQgetisnull(res, row, column)) {
                printf("null");
            } else if (PQfformat(res, column)) {
                printf("\\x");
                for (int at = 0; at < PQgetlength(res, row, column); at++)
                    printf("%02x", (unsigned char)value[at]);
            } else {
                printf("%s", value);
            }
        }
        printf(")\n");
    }
}

/* The transaction state, after what was shown. */
static void state(void)
{
    static const char *names[] = {"idle", "active", "in transaction", "failed", "unknown"};
    printf("  state: %s\n", names[PQtransactionStatus(conn)]);
}

static void run(const char *sql)
{
    printf("%s\n", sql);
    PGresult *res = PQexec(conn, sql);
    show(res);
    PQclear(res);
    state();
}

/* All results of what was sent, up to the null that ends them. */
static void results(void)
{
    PGresult *res;
    while ((res = PQgetResult(conn)) != NULL) {
        show(res);
        PQclear(res);
    }
    printf("  end\n");
}

static void simple_queries(void)
{
    printf("== simple queries\n");
    run("CREATE SCHEMA libpq");
    run("SET search_path = libpq");
    run("CREATE TABLE t (id int PRIMARY KEY, name varchar(20), amount numeric(8,2), raw bytea)");
    run("INSERT INTO t VALUES (1, 'one', 1.5, '\\x0001'), (2, NULL, NULL, NULL)");
    run("SELECT * FROM t ORDER BY id");
    run("SELECT id FROM t WHERE false");
    run("");
    run("SELECT 1; SELECT 'two'; UPDATE t SET name = 'uno' WHERE id = 1");
    run("INSERT INTO t VALUES (3); SELECT 1/0; INSERT INTO t VALUES (4)");
    run("SELECT count(*) FROM t");
    run("BEGIN; INSERT INTO t VALUES (3, 'three')");
    run("SELECT count(*) FROM t");
    run("SELECT nonsense");
    run("SELECT 1");
    run("COMMIT");
    run("SELECT count(*) FROM t");
    run("COMMIT");
    run("DROP TABLE IF EXISTS nothing");
    printf("several results of one string\n");
    must(PQsendQuery(conn, "SELECT 1 AS a; INSERT INTO t VALUES (5, 'five'); SELECT 2 AS b"), "send a string");
    results();
    printf("row by row\n");
    must(PQsendQuery(conn, "SELECT g FROM generate_series(1, 3) g"), "send a query");
    must(PQsetSingleRowMode(conn), "single row mode");
    results();
}

static void parameters(void)
{
    printf("== parameters\n");
    const char *text[] = {"6", "six", NULL};
    PGresult *res = PQexecParams(conn, "INSERT INTO t (id, name, amount) VALUES ($1, $2, $3) RETURNING id, name, amount",
                                 3, NULL, text, NULL, NULL, 0);
    show(res);
    PQclear(res);
    const char number[4] = {0, 0, 0, 6};
    const char *binary[] = {number};
    const int lengths[] = {4}, formats[] = {1};
    const Oid types[] = {23};
    res = PQexecParams(conn, "SELECT id, name, amount, raw FROM t WHERE id = $1", 1, types, binary, lengths, formats, 1);
    show(res);
    PQclear(res);
    const char *wrong[] = {"six"};
    res = PQexecParams(conn, "SELECT id FROM t WHERE id = $1", 1, NULL, wrong, NULL, NULL, 0);
    show(res);
    PQclear(res);
    res = PQexecParams(conn, "SELECT 1; SELECT 2", 0, NULL, NULL, NULL, NULL, 0);
    show(res);
    PQclear(res);
    state();
}

static void prepared(void)
{
    printf("== prepared statements\n");
    PGresult *res = PQprepare(conn, "by_id", "SELECT name, amount FROM t WHERE id = $1", 0, NULL);
    show(res);
    PQclear(res);
    res = PQdescribePrepared(conn, "by_id");
    show(res);
    PQclear(res);
    const char *ids[] = {"1", "2", "77"};
    for (int at = 0; at < 3; at++) {
        res = PQexecPrepared(conn, "by_id", 1, &ids[at], NULL, NULL, at % 2);
        show(res);
        PQclear(res);
    }
    res = PQprepare(conn, "by_id", "SELECT 1", 0, NULL);
    show(res);
    PQclear(res);
    res = PQexecPrepared(conn, "nobody", 0, NULL, NULL, NULL, 0);
    show(res);
    PQclear(res);
    res = PQprepare(conn, "", "UPDATE t SET name = $2 WHERE id = $1", 0, NULL);
    show(res);
    PQclear(res);
    const char *values[] = {"2", "two"};
    res = PQexecPrepared(conn, "", 2, values, NULL, NULL, 0);
    show(res);
    PQclear(res);
    run("DEALLOCATE by_id");
    res = PQexecPrepared(conn, "by_id", 1, ids, NULL, NULL, 0);
    show(res);
    PQclear(res);
    const char *tries[] = {"SELECT nothing FROM nowhere", "SELECT nothing FROM nowhere", "SELECT 'fine'", "SELECT 2"};
    for (int at = 0; at < 4; at++) {
        res = PQprepare(conn, "tried", tries[at], 0, NULL);
        show(res);
        PQclear(res);
    }
    res = PQexecPrepared(conn, "tried", 0, NULL, NULL, NULL, 0);
    show(res);
    PQclear(res);
    state();
}

static void send_params(const char *sql, const char *value)
{
    must(PQsendQueryParams(conn, sql, value ? 1 : 0, NULL, &value, NULL, NULL, 0), sql);
}

/* One result and the null that separates it from the next one of a pipeline. */
static void piped(void)
{
    PGresult *res = PQgetResult(conn);
    must(res != NULL, "a result of the pipeline");
    ExecStatusType status = PQresultStatus(res);
    show(res);
    PQclear(res);
    if (status != PGRES_PIPELINE_SYNC) {
        res = PQgetResult(conn);
        must(res == NULL, "the end of a result");
    }
}

static void pipelines(void)
{
    printf("== pipeline\n");
    must(PQenterPipelineMode(conn), "enter pipeline mode");
    const char *id = "1";
    must(PQsendPrepare(conn, "piped", "SELECT name FROM t WHERE id = $1", 0, NULL), "prepare in a pipeline");
    must(PQsendQueryPrepared(conn, "piped", 1, &id, NULL, NULL, 0), "execute in a pipeline");
    send_params("INSERT INTO t (id, name) VALUES (20, $1)", "twenty");
    must(PQsendFlushRequest(conn), "ask for a flush");
    must(PQflush(conn) == 0, "flush");
    printf("answers before the Sync\n");
    piped();
    piped();
    piped();
    send_params("SELECT name FROM t WHERE id = $1", "20");
    must(PQpipelineSync(conn), "sync");
    piped();
    piped();

    printf("an error, up to the next Sync\n");
    send_params("INSERT INTO t (id) VALUES ($1)", "21");
    send_params("SELECT 1 / $1::int", "0");
    send_params("INSERT INTO t (id) VALUES ($1)", "22");
    must(PQpipelineSync(conn), "sync");
    send_params("SELECT count(*) FROM t WHERE id > $1", "20");
    must(PQpipelineSync(conn), "sync");
    for (int at = 0; at < 6; at++)
        piped();

    printf("a transaction, some of it failing\n");
    send_params("BEGIN", NULL);
    send_params("INSERT INTO t (id) VALUES ($1)", "23");
    must(PQpipelineSync(conn), "sync");
    send_params("INSERT INTO t (id) VALUES ($1)", "23");
    must(PQpipelineSync(conn), "sync");
    send_params("SELECT 1", NULL);
    send_params("ROLLBACK", NULL);
    must(PQpipelineSync(conn), "sync");
    send_params("ROLLBACK", NULL);
    must(PQpipelineSync(conn), "sync");
    for (int at = 0; at < 10; at++)
        piped();
    printf("  pipeline status %d\n", PQpipelineStatus(conn));

    printf("many at once\n");
    char number[16];
    for (int at = 0; at < 2000; at++) {
        snprintf(number, sizeof number, "%d", 1000 + at);
        send_params(at % 2 ? "SELECT name FROM t WHERE id = $1" : "INSERT INTO t (id, name) VALUES ($1, 'x')", number);
        if (at % 100 == 99)
            must(PQpipelineSync(conn), "sync");
    }
    must(PQflush(conn) >= 0, "flush");
    int rows = 0, syncs = 0;
    for (int at = 0; at < 2000 + 20; at++) {
        PGresult *res = PQgetResult(conn);
        must(res != NULL, "a result of a long pipeline");
        if (PQresultStatus(res) == PGRES_PIPELINE_SYNC) {
            syncs++;
        } else {
            must(PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK, "each of many");
            rows += PQntuples(res);
            must(PQgetResult(conn) == NULL, "the end of one of many");
        }
        PQclear(res);
    }
    printf("  %d syncs, %d rows\n", syncs, rows);
    must(PQexitPipelineMode(conn), "leave pipeline mode");
    run("SELECT count(*), min(id), max(id) FROM t WHERE id >= 1000");
}

static void put(const char *data)
{
    must(PQputCopyData(conn, data, (int)strlen(data)) == 1, "copy data");
}

static void copies(void)
{
    printf("== copy\n");
    run("CREATE TABLE c (id int PRIMARY KEY, name text)");
    run("COPY c FROM STDIN");
    put("1\tone\n2\t\\N\n3\tthr");
    put("ee\n");
    must(PQputCopyEnd(conn, NULL) == 1, "copy end");
    results();
    run("COPY c FROM STDIN (FORMAT csv)");
    put("4,\"four, quoted\"\n");
    must(PQputCopyEnd(conn, NULL) == 1, "copy end");
    results();
    run("COPY c FROM STDIN");
    put("5\tfive\n");
    must(PQputCopyEnd(conn, "the client thought better of it") == 1, "copy fail");
    results();
    run("COPY c FROM STDIN");
    put("1\tagain\n");
    must(PQputCopyEnd(conn, NULL) == 1, "copy end");
    results();
    run("SELECT * FROM c ORDER BY id");
    const char *queries[] = {"COPY c TO STDOUT", "COPY (SELECT id FROM c ORDER BY id DESC) TO STDOUT (FORMAT csv)"};
    for (int at = 0; at < 2; at++) {
        run(queries[at]);
        char *line;
        int length;
        while ((length = PQgetCopyData(conn, &line, 0)) > 0) {
            printf("    %.*s", length, line);
            PQfreemem(line);
        }
        must(length == -1, "the end of a copy");
        results();
    }
    run("BEGIN");
    run("COPY c FROM STDIN");
    put("6\tsix\n");
    must(PQputCopyEnd(conn, NULL) == 1, "copy end");
    results();
    run("SELECT count(*) FROM c");
    run("ROLLBACK");
    run("SELECT count(*) FROM c");
}

static void cancels(void)
{
    printf("== cancel\n");
    char why[256] = "";
    PGcancel *cancel = PQgetCancel(conn);
    must(cancel != NULL, "a cancel key");
    must(PQsendQuery(conn, "SELECT pg_sleep(300)"), "send a long query");
    /* A request that arrives before its query cancels nothing, so it is made again until it does. */
    struct pollfd wait = {.fd = PQsocket(conn), .events = POLLIN};
    do {
        must(PQcancel(cancel, why, sizeof why), why);
    } while (poll(&wait, 1, 200) == 0);
    results();
    PQfreeCancel(cancel);
    /* One of those requests may reach the next statement. */
    for (int at = 0; at < 20; at++) {
        PGresult *res = PQexec(conn, "SELECT 1");
        int done = PQresultStatus(res) == PGRES_TUPLES_OK;
        PQclear(res);
        if (done)
            break;
    }
    run("SELECT 'still here'");
}

static void session(void)
{
    printf("== session\n");
    printf("  server_encoding %s, client_encoding %s, DateStyle %s, TimeZone set: %d\n",
           PQparameterStatus(conn, "server_encoding"), PQparameterStatus(conn, "client_encoding"),
           PQparameterStatus(conn, "DateStyle"), PQparameterStatus(conn, "TimeZone") != NULL);
    run("SET application_name = 'libpq test'");
    printf("  application_name %s\n", PQparameterStatus(conn, "application_name"));
    run("SELECT length('\xe9')");
    run("SELECT length('\xc3\xa9')");
    run("SET client_encoding = 'UTF8'");
    run("SET DateStyle = 'German'");
    printf("  DateStyle %s\n", PQparameterStatus(conn, "DateStyle"));
    run("SELECT DATE '2001-02-03'");
    run("RESET DateStyle");
    run("SELECT DATE '2001-02-03'");
    run("BEGIN READ ONLY");
    run("INSERT INTO t VALUES (50)");
    run("ROLLBACK");
    run("BEGIN");
    run("SAVEPOINT a");
    run("INSERT INTO t VALUES (51)");
    run("ROLLBACK TO a");
    run("INSERT INTO t VALUES (52)");
    run("RELEASE a");
    run("COMMIT");
    run("SELECT id FROM t WHERE id BETWEEN 50 AND 59");
    run("BEGIN");
    run("DECLARE c CURSOR FOR SELECT id FROM c ORDER BY id");
    run("FETCH 2 FROM c");
    run("FETCH ALL FROM c");
    run("CLOSE c");
    run("COMMIT");
    run("BEGIN");
    run("DECLARE c CURSOR FOR SELECT id FROM c ORDER BY id");
    run("FETCH 1 FROM c");
    run("UPDATE c SET name = 'changed while it is read' WHERE id = 1");
    run("FETCH 1 FROM c");
    run("DELETE FROM c WHERE id = 3");
    run("FETCH ALL FROM c");
    run("ROLLBACK");
    PQreset(conn);
    must(PQstatus(conn) == CONNECTION_OK, "connect again");
    PQsetNoticeReceiver(conn, notice, NULL);
    run("SELECT count(*) FROM libpq.c");
    run("DROP SCHEMA libpq CASCADE");
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2) {
        fprintf(stderr, "usage: %s DSN\n", argv[0]);
        return 2;
    }
    conn = PQconnectdb(argv[1]);
    must(PQstatus(conn) == CONNECTION_OK, "connect");
    PQsetNoticeReceiver(conn, notice, NULL);
    simple_queries();
    parameters();
    prepared();
    pipelines();
    copies();
    cancels();
    session();
    PQfinish(conn);
    printf("all done\n");
    return 0;
}
