// What Node programs do with node-postgres, one feature a function.
//
// Everything that an answer holds is printed, and scripts/clients compares the transcript with that of one PostgreSQL
// server, so nothing here prints an OID that a user's object has, a time or a process id.
//
// usage: node main.js HOST PORT USER DATABASE

import { pipeline as flow } from 'node:stream/promises'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import copy from 'pg-copy-streams'
import Cursor from 'pg-cursor'

const [host, port, user, database] = process.argv.slice(2)
const config = { host, port: Number(port), user, database, options: '-c search_path=node -c TimeZone=UTC' }

const title = (words) => console.log('==', words)

function show(result) {
  for (const one of Array.isArray(result) ? result : [result]) {
    const fields = one.fields.map((field) => `${field.name}/${field.dataTypeID}/${field.format}`)
    console.log('  ', one.command, one.rowCount, fields.join(' '), JSON.stringify(one.rows))
  }
}

// Runs what must fail, and prints the error as a program would look at it.
async function fails(what, work) {
  try {
    await work()
    console.log(`  ${what}: no error`)
  } catch (error) {
    console.log(`  ${what}: ${error.code} ${error.message} table ${error.table} constraint ${error.constraint}`)
  }
}

async function simple(client) {
  title('simple protocol')
  show(await client.query('CREATE TABLE t (id int PRIMARY KEY, name text, amount numeric, data jsonb)'))
  show(await client.query("INSERT INTO t VALUES (1, 'one', 1.5, '{\"a\": [1, null]}'), (2, NULL, NULL, NULL)"))
  show(await client.query('SELECT * FROM t ORDER BY id'))
  show(await client.query("SELECT 1 AS one; UPDATE t SET name = 'x' WHERE false; SELECT 'two' AS two"))
  await fails('the second of three', () => client.query('INSERT INTO t VALUES (3); SELECT 1 / 0; INSERT INTO t VALUES (4)'))
  show(await client.query('SELECT count(*) FROM t'))
  show(await client.query(''))
}

async function extended(client) {
  title('extended protocol')
  show(await client.query('INSERT INTO t (id, name, amount, data) VALUES ($1, $2, $3, $4) RETURNING *', [3, "it's", 2.5, { k: 'v' }]))
  show(await client.query({ text: 'SELECT id, name FROM t WHERE id = ANY($1) ORDER BY id', values: [[1, 3]], rowMode: 'array' }))
  show(await client.query({ text: 'SELECT $1::bytea AS raw, $2::bool AS truth, $3::timestamptz AS at', values: [Buffer.from([0, 255]), true, new Date(0)] }))
  show(await client.query({ text: 'SELECT id, amount FROM t WHERE id = $1', values: [3], binary: true }))
  await fails('wrong value', () => client.query('SELECT $1::int', ['x']))
  await fails('two statements', () => client.query('SELECT $1::int; SELECT 2', [1]))
  show(await client.query('SELECT $1::text AS after', ['errors']))
}

async function prepared(client) {
  title('prepared statements')
  const byId = (id) => client.query({ name: 'by id', text: 'SELECT id, name FROM t WHERE id = $1', values: [id] })
  for (const id of [1, 2, 3, -1]) show(await byId(id))
  await fails('wrong', () => client.query({ name: 'tried', text: 'SELECT nothing FROM nowhere' }))
  show(await client.query({ name: 'tried', text: "SELECT 'right' AS words" }))
  const insert = (id) => client.query({ name: 'insert', text: 'INSERT INTO t (id) VALUES ($1)', values: [id] })
  await fails('first use fails', () => insert(1))
  show(await insert(10))
  await client.query('ALTER TABLE t ADD COLUMN more int DEFAULT 7')
  show(await byId(1))
  await client.query('ALTER TABLE t DROP COLUMN more')
  show(await byId(1))
}

async function pipelined(client) {
  title('queries without waiting for each other')
  const work = []
  for (let id = 100; id < 400; id++) {
    work.push(client.query('INSERT INTO t (id, name) VALUES ($1, $2)', [id, 'queued']))
    work.push(client.query('SELECT count(*)::int AS n FROM t WHERE id >= 100'))
  }
  const results = await Promise.all(work)
  console.log('  ', results.filter((_, at) => at % 2).every((result, at) => result.rows[0].n === at + 1))
  const settled = await Promise.allSettled([
    client.query('SELECT 1 / $1::int', [0]),
    client.query('INSERT INTO t (id) VALUES ($1)', [100]),
    client.query('SELECT $1::text AS after', ['them']),
  ])
  for (const one of settled) console.log('  ', one.status, one.reason?.code ?? one.value.rows)
}

async function cursors(client) {
  title('cursors')
  await client.query('BEGIN')
  const cursor = client.query(new Cursor('SELECT id FROM t WHERE id >= $1 ORDER BY id', [100]))
  let seen = 0
  for (let rows = await cursor.read(70); rows.length > 0; rows = await cursor.read(70)) seen += rows.reduce((sum, row) => sum + row.id, 0)
  await cursor.close()
  console.log('  ', seen)
  const early = client.query(new Cursor('SELECT id FROM t ORDER BY id'))
  console.log('  ', await early.read(2))
  await early.close()
  show(await client.query('SELECT count(*) FROM t'))
  await client.query('COMMIT')
  const outside = client.query(new Cursor('SELECT id FROM t WHERE id >= 100 ORDER BY id'))
  console.log('  ', (await outside.read(3)).length)
  await outside.close()
}

async function transactions(client) {
  title('transactions')
  await client.query('BEGIN')
  await client.query('INSERT INTO t (id) VALUES (1000)')
  await client.query('SAVEPOINT s')
  await fails('duplicate', () => client.query('INSERT INTO t (id) VALUES (1000)'))
  await fails('after it', () => client.query('SELECT 1'))
  await client.query('ROLLBACK TO s')
  await client.query('INSERT INTO t (id) VALUES ($1)', [1001])
  show(await client.query('COMMIT'))
  await client.query('BEGIN ISOLATION LEVEL SERIALIZABLE')
  await client.query('DELETE FROM t')
  show(await client.query('ROLLBACK'))
  await client.query('BEGIN READ ONLY')
  await fails('read only', () => client.query('DELETE FROM t'))
  show(await client.query('COMMIT'))
  show(await client.query('SELECT id FROM t WHERE id >= 1000 ORDER BY id'))
}

async function retries() {
  title('retries')
  const pool = new pg.Pool({ ...config, max: 4 })
  await pool.query('CREATE TABLE counter (total int)')
  await pool.query('INSERT INTO counter VALUES (0)')
  const add = async () => {
    for (;;) {
      const client = await pool.connect()
      try {
        await client.query('BEGIN ISOLATION LEVEL SERIALIZABLE')
        const { rows } = await client.query('SELECT total FROM counter')
        await client.query('UPDATE counter SET total = $1', [rows[0].total + 1])
        await client.query('COMMIT')
        return
      } catch (error) {
        await client.query('ROLLBACK')
        if (!['40001', '40P01'].includes(error.code)) throw error
      } finally {
        client.release()
      }
    }
  }
  await Promise.all(Array.from({ length: 100 }, add))
  show(await pool.query('SELECT total FROM counter'))
  await pool.end()
}

async function copies(client) {
  title('copy')
  await client.query('CREATE TABLE c (id int PRIMARY KEY, name text)')
  const lines = Array.from({ length: 5000 }, (_, id) => `${id}\tname ${id}\n`)
  const into = client.query(copy.from('COPY c FROM STDIN'))
  await flow(Readable.from(lines), into)
  console.log('  ', into.rowCount)
  const out = client.query(copy.to('COPY (SELECT * FROM c ORDER BY id) TO STDOUT'))
  let text = ''
  for await (const chunk of out) text += chunk
  console.log('  ', text === lines.join(''))
  await fails('a key that is there', () => flow(Readable.from(['9000\tx\n1\tx\n']), client.query(copy.from('COPY c FROM STDIN'))))
  show(await client.query('SELECT count(*), max(id) FROM c'))
  await client.query('BEGIN')
  await flow(Readable.from(['9001,x\n']), client.query(copy.from('COPY c FROM STDIN (FORMAT csv)')))
  show(await client.query('SELECT count(*), max(id) FROM c'))
  await client.query('ROLLBACK')
  show(await client.query('SELECT count(*), max(id) FROM c'))
}

async function cancels(client) {
  title('cancel')
  const canceller = new pg.Client(config)
  let running = true
  // node-postgres cancels by another connection, with the key of the first.
  const request = async () => {
    while (running) {
      await sleep(200)
      const connection = new pg.Connection({ host, port: Number(port) })
      await new Promise((done) => {
        connection.on('connect', () => connection.cancel(client.processID, client.secretKey))
        connection.on('end', done)
        connection.on('error', done)
        connection.connect(Number(port), host)
      })
    }
  }
  const requests = request()
  await fails('sleep', () => client.query('SELECT pg_sleep(300)'))
  running = false
  await requests
  // One of those requests may reach the next statement.
  for (let at = 0; at < 20; at++) {
    try {
      await client.query('SELECT 1')
      break
    } catch {
      continue
    }
  }
  show(await client.query("SELECT 'still here' AS words"))
  await canceller.end().catch(() => {})
  const impatient = new pg.Client({ ...config, statement_timeout: 300 })
  await impatient.connect()
  await fails('statement timeout', () => impatient.query('SELECT pg_sleep(300)'))
  await impatient.end()
}

async function errors(client) {
  title('errors')
  for (const sql of ['INSERT INTO t (id) VALUES (NULL)', 'INSERT INTO t (id) VALUES (1)', 'SELECT * FROM nowhere',
    'SELECT nothing FROM t', 'SELECT nofunction(1)', 'SELEC 1', "SELECT 'x'::int", 'SELECT 1 / 0', 'DROP TABLE nowhere',
    'UPDATE nowhere SET a = 1', 'CREATE TABLE t (id int)']) {
    await fails(sql, () => client.query(sql))
    await fails(sql, () => client.query({ text: sql, queryMode: 'extended' }))
  }
}

const client = new pg.Client(config)
client.on('notice', (notice) => console.log('   notice', notice.message))
await client.connect()
await client.query('CREATE SCHEMA node')
for (const part of [simple, extended, prepared, pipelined, cursors, transactions, retries, copies, cancels, errors]) {
  await part(client)
}
await client.query('DROP TABLE IF EXISTS nowhere')
await client.query('SET client_min_messages = warning')
await client.query('DROP SCHEMA node CASCADE')
await client.end()
console.log('all done')
