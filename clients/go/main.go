// What Go programs do with pgx, one feature a function.
//
// Everything that an answer holds is printed, and scripts/clients compares the transcript with that of one PostgreSQL
// server, so nothing here prints an OID that a user's object has, a time or a process id.
//
// usage: go run . DSN
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

var ctx = context.Background()

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Println("FAILED:", err)
		panic(err)
	}
	return value
}

func title(words string) { fmt.Println("==", words) }

// fails prints an error as a program would look at it.
func fails(what string, err error) {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		fmt.Printf("  %s: %s %s table %q constraint %q\n", what, pg.Code, pg.Message, pg.TableName, pg.ConstraintName)
	case errors.Is(err, pgx.ErrNoRows):
		fmt.Printf("  %s: no rows\n", what)
	default:
		fmt.Printf("  %s: %v\n", what, err)
	}
}

// show prints columns, rows and tag of a query.
func show(rows pgx.Rows, err error) {
	if err != nil {
		fails("query", err)
		return
	}
	defer rows.Close()
	names := []string{}
	for _, field := range rows.FieldDescriptions() {
		names = append(names, fmt.Sprintf("%s/%d/%d", field.Name, field.DataTypeOID, field.Format))
	}
	fmt.Println("  ", strings.Join(names, " "))
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			fails("values", err)
			return
		}
		fmt.Printf("    %v\n", values)
	}
	if rows.Err() != nil {
		fails("rows", rows.Err())
		return
	}
	fmt.Println("  ", rows.CommandTag())
}

func exec(conn *pgx.Conn, sql string, args ...any) {
	tag, err := conn.Exec(ctx, sql, args...)
	if err != nil {
		fails(sql, err)
		return
	}
	fmt.Println("  ", tag)
}

// modes runs the same statements in every way in which pgx can send them.
func modes(conn *pgx.Conn) {
	all := []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeCacheStatement}
	for number, mode := range all {
		title(fmt.Sprint("mode ", mode))
		for round := 0; round < 3; round++ {
			id := number*10 + round
			exec(conn, "INSERT INTO t (id, name, amount) VALUES ($1, $2, $3)", mode, id, fmt.Sprintf("name '%d'", id), 1.5)
			show(conn.Query(ctx, "SELECT id, name, amount FROM t WHERE id = $1", mode, id))
			exec(conn, "UPDATE t SET amount = amount + $2 WHERE id = $1", mode, id, 2.5)
		}
		exec(conn, "INSERT INTO t (id) VALUES ($1)", mode, number*10)
		show(conn.Query(ctx, "SELECT name FROM t WHERE id < $1 ORDER BY id", mode, 3))
		var name string
		fails("no row", conn.QueryRow(ctx, "SELECT name FROM t WHERE id = $1", mode, -1).Scan(&name))
	}
	title("several statements in a string")
	results := must(conn.PgConn().Exec(ctx, "SELECT 1; UPDATE t SET name = NULL WHERE id = 0; SELECT 'x'").ReadAll())
	for _, result := range results {
		fmt.Printf("   %s %q\n", result.CommandTag, result.Rows)
	}
}

func types(conn *pgx.Conn) {
	title("types")
	day := time.Date(2001, 2, 3, 0, 0, 0, 0, time.UTC)
	for _, value := range []any{int16(1), int32(2), int64(1) << 40, float32(1.5), 2.5, true, "text", []byte{0, 255}, day,
		[]int32{1, 2}, []string{"a", "b,c"}, map[string]any{"k": []any{1.0, nil}}, [16]byte{15: 7}} {
		kind := map[string]string{"[16]uint8": "uuid", "map[string]interface {}": "jsonb", "time.Time": "timestamptz",
			"[]uint8": "bytea", "[]int32": "int[]", "[]string": "text[]", "string": "text", "bool": "bool",
			"int16": "smallint", "int32": "int", "int64": "bigint", "float32": "real", "float64": "float8"}[fmt.Sprintf("%T", value)]
		rows, err := conn.Query(ctx, "SELECT $1::"+kind+" AS v, NULL::"+kind+" AS n", value)
		show(rows, err)
	}
	var numeric pgtype.Numeric
	must(0, conn.QueryRow(ctx, "SELECT 12345.678::numeric").Scan(&numeric))
	fmt.Println("  ", numeric.Int, numeric.Exp)
	var shade string
	exec(conn, "CREATE TYPE shade AS ENUM ('light', 'dark')")
	must(0, conn.QueryRow(ctx, "SELECT 'dark'::shade").Scan(&shade))
	fmt.Println("  ", shade)
}

func prepared(conn *pgx.Conn) {
	title("prepared statements")
	statement := must(conn.Prepare(ctx, "by id", "SELECT name, amount FROM t WHERE id = $1"))
	fmt.Println("  ", statement.ParamOIDs, len(statement.Fields))
	for _, id := range []int{1, 2, -1} {
		show(conn.Query(ctx, "by id", id))
	}
	_, err := conn.Prepare(ctx, "wrong", "SELECT nothing FROM nowhere")
	fails("prepare", err)
	_, err = conn.Prepare(ctx, "wrong", "SELECT 'right'")
	fmt.Println("   again:", err)
	show(conn.Query(ctx, "wrong"))
	must(0, conn.Deallocate(ctx, "by id"))
	exec(conn, "ALTER TABLE t ADD COLUMN more int DEFAULT 3")
	show(conn.Query(ctx, "SELECT more FROM t WHERE id = $1", 1))
	exec(conn, "ALTER TABLE t DROP COLUMN more")
}

func batches(conn *pgx.Conn) {
	title("batch")
	batch := &pgx.Batch{}
	for id := 100; id < 150; id++ {
		batch.Queue("INSERT INTO t (id, name) VALUES ($1, 'batch')", id)
	}
	batch.Queue("SELECT count(*) FROM t WHERE name = 'batch'")
	results := conn.SendBatch(ctx, batch)
	affected := int64(0)
	for id := 100; id < 150; id++ {
		affected += must(results.Exec()).RowsAffected()
	}
	show(results.Query())
	fmt.Println("  ", affected, results.Close())
	title("a batch that fails is one transaction")
	batch = &pgx.Batch{}
	batch.Queue("INSERT INTO t (id) VALUES (200)")
	batch.Queue("INSERT INTO t (id) VALUES (100)")
	batch.Queue("INSERT INTO t (id) VALUES (201)")
	fails("batch", conn.SendBatch(ctx, batch).Close())
	show(conn.Query(ctx, "SELECT count(*) FROM t WHERE id >= 200"))
	title("pipeline")
	pipeline := conn.PgConn().StartPipeline(ctx)
	pipeline.SendPrepare("piped", "SELECT $1::int * 2", nil)
	pipeline.SendQueryPrepared("piped", [][]byte{[]byte("21")}, nil, nil)
	pipeline.SendQueryParams("SELECT 1 / $1::int", [][]byte{[]byte("0")}, nil, nil, nil)
	pipeline.SendQueryParams("SELECT 'skipped'", nil, nil, nil, nil)
	must(0, pipeline.Sync())
	pipeline.SendQueryParams("SELECT 'after'", nil, nil, nil, nil)
	must(0, pipeline.Sync())
	for at := 0; at < 8; at++ {
		result, err := pipeline.GetResults()
		if err != nil {
			fails("pipeline", err)
			continue
		}
		switch result := result.(type) {
		case *pgconn.ResultReader:
			read := result.Read()
			if read.Err != nil {
				fails("result", read.Err)
			} else {
				fmt.Printf("   %s %q\n", read.CommandTag, read.Rows)
			}
		case *pgconn.StatementDescription:
			fmt.Println("   described", result.ParamOIDs)
		case *pgconn.PipelineSync:
			fmt.Println("   sync")
		case nil:
			fmt.Println("   end")
			at = 8
		}
	}
	must(0, pipeline.Close())
}

func transactions(conn *pgx.Conn) {
	title("transactions")
	must(0, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		must(tx.Exec(ctx, "INSERT INTO t (id) VALUES (300)"))
		inner := must(tx.Begin(ctx))
		_, err := inner.Exec(ctx, "INSERT INTO t (id) VALUES (300)")
		fails("inner", err)
		_, err = inner.Exec(ctx, "SELECT 1")
		fails("after", err)
		must(0, inner.Rollback(ctx))
		inner = must(tx.Begin(ctx))
		must(inner.Exec(ctx, "INSERT INTO t (id) VALUES (301)"))
		return inner.Commit(ctx)
	}))
	fails("given up", pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		must(tx.Exec(ctx, "INSERT INTO t (id) VALUES (302)"))
		return errors.New("by the program")
	}))
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		tx := must(conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level, AccessMode: pgx.ReadOnly}))
		show(tx.Query(ctx, "SELECT id FROM t WHERE id >= 300 ORDER BY id"))
		_, err := tx.Exec(ctx, "DELETE FROM t")
		fails("read only", err)
		must(0, tx.Rollback(ctx))
	}
	title("failed transactions do not commit")
	tx := must(conn.Begin(ctx))
	_, err := tx.Exec(ctx, "SELECT 1 / 0")
	fails("division", err)
	fails("commit", tx.Commit(ctx))
}

// retries adds to one counter from several connections of a pool, again after a serialization failure.
func retries(dsn string) {
	title("retries")
	pool := must(pgxpool.New(ctx, dsn))
	defer pool.Close()
	must(pool.Exec(ctx, "CREATE TABLE go.counter (total int); INSERT INTO go.counter VALUES (0)"))
	var group sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for done := 0; done < 25; {
				err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
					var total int
					if err := tx.QueryRow(ctx, "SELECT total FROM go.counter").Scan(&total); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, "UPDATE go.counter SET total = $1", total+1)
					return err
				})
				var pg *pgconn.PgError
				if err == nil {
					done++
				} else if !errors.As(err, &pg) || (pg.Code != "40001" && pg.Code != "40P01") {
					fails("worker", err)
					return
				}
			}
		}()
	}
	group.Wait()
	var total int
	must(0, pool.QueryRow(ctx, "SELECT total FROM go.counter").Scan(&total))
	fmt.Println("  ", total)
}

func copies(conn *pgx.Conn) {
	title("copy")
	exec(conn, "CREATE TABLE c (id int PRIMARY KEY, name text, at timestamptz)")
	rows := [][]any{}
	for id := 0; id < 5000; id++ {
		rows = append(rows, []any{id, fmt.Sprint("name ", id), time.Unix(int64(id), 0)})
	}
	columns := []string{"id", "name", "at"}
	fmt.Println("  ", must(conn.CopyFrom(ctx, pgx.Identifier{"go", "c"}, columns, pgx.CopyFromRows(rows))))
	_, err := conn.CopyFrom(ctx, pgx.Identifier{"go", "c"}, columns, pgx.CopyFromRows(rows[4999:]))
	fails("copy of a key that is there", err)
	tag := must(conn.PgConn().CopyFrom(ctx, strings.NewReader("6000\tx\n6001\t\\N\n"), "COPY c (id, name) FROM STDIN"))
	fmt.Println("  ", tag)
	var out strings.Builder
	tag = must(conn.PgConn().CopyTo(ctx, &out, "COPY (SELECT id, name FROM c WHERE id >= 4999 ORDER BY id) TO STDOUT (FORMAT csv)"))
	fmt.Printf("   %s %q\n", tag, out.String())
	show(conn.Query(ctx, "SELECT count(*), sum(id) FROM c"))
}

func cancels(conn *pgx.Conn) {
	title("cancel")
	go func() {
		// A request that arrives before its query cancels nothing, so it is made again until it does.
		for {
			time.Sleep(200 * time.Millisecond)
			if conn.PgConn().CancelRequest(ctx) != nil || !conn.PgConn().IsBusy() {
				return
			}
		}
	}()
	_, err := conn.Exec(ctx, "SELECT pg_sleep(300)")
	fails("sleep", err)
	time.Sleep(time.Second)
	show(conn.Query(ctx, "SELECT 'still here'"))
}

func faults(conn *pgx.Conn) {
	title("errors")
	for _, sql := range []string{"INSERT INTO t (id) VALUES (NULL)", "INSERT INTO t (id) VALUES (1)", "SELECT * FROM nowhere",
		"SELECT nothing FROM t", "SELECT nofunction(1)", "SELEC 1", "SELECT 'x'::int", "SELECT 1 / 0", "DROP TABLE nowhere",
		"UPDATE nowhere SET a = 1", "CREATE TABLE t (id int)"} {
		exec(conn, sql)
		exec(conn, sql, pgx.QueryExecModeSimpleProtocol)
	}
}

func main() {
	config := must(pgx.ParseConfig(os.Args[1]))
	config.RuntimeParams["search_path"] = "go"
	config.RuntimeParams["timezone"] = "UTC"
	conn := must(pgx.ConnectConfig(ctx, config))
	exec(conn, "CREATE SCHEMA go")
	exec(conn, "CREATE TABLE t (id int PRIMARY KEY, name text, amount float8)")
	modes(conn)
	types(conn)
	prepared(conn)
	batches(conn)
	transactions(conn)
	retries(os.Args[1])
	copies(conn)
	cancels(conn)
	faults(conn)
	exec(conn, "SET client_min_messages = warning")
	exec(conn, "DROP SCHEMA go CASCADE")
	must(0, conn.Close(ctx))
	fmt.Println("all done")
}
