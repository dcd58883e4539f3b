import java.io.StringReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.sql.Array;
import java.sql.BatchUpdateException;
import java.sql.CallableStatement;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.ParameterMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyIn;
import org.postgresql.copy.CopyManager;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/**
 * What Java programs do with JDBC, one feature a method, in every query mode of the driver.
 *
 * <p>Everything that an answer holds is printed, and scripts/clients compares the transcript with that of one
 * PostgreSQL server, so nothing here prints an OID that a user's object has, a time or a process id.
 *
 * <p>usage: java Clients.java HOST PORT USER DATABASE
 */
public final class Clients {
    private final String url;
    private final String user;

    private Clients(String[] args) {
        url = "jdbc:postgresql://" + args[0] + ":" + args[1] + "/" + args[3];
        user = args[2];
    }

    private Connection connect(String... settings) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("user", user);
        properties.setProperty("currentSchema", "java");
        properties.setProperty("options", "-c TimeZone=UTC");
        for (String setting : settings) {
            int at = setting.indexOf('=');
            properties.setProperty(setting.substring(0, at), setting.substring(at + 1));
        }
        return DriverManager.getConnection(url, properties);
    }

    private static void title(String words) {
        System.out.println("== " + words);
    }

    private interface Work {
        void run() throws Exception;
    }

    /** Runs what must fail, and prints the error as a program would look at it. */
    private static void fails(String what, Work work) throws Exception {
        try {
            work.run();
            System.out.println("  " + what + ": no error");
        } catch (PSQLException error) {
            ServerErrorMessage server = error.getServerErrorMessage();
            System.out.println("  " + what + ": " + error.getSQLState() + " "
                + (server == null ? error.getMessage() : server.getMessage() + " table " + server.getTable()
                    + " constraint " + server.getConstraint()));
        } catch (BatchUpdateException error) {
            System.out.println("  " + what + ": batch " + error.getSQLState() + " "
                + Arrays.toString(error.getUpdateCounts()));
        }
    }

    private static void show(ResultSet rows) throws SQLException {
        ResultSetMetaData columns = rows.getMetaData();
        StringBuilder line = new StringBuilder("   ");
        for (int column = 1; column <= columns.getColumnCount(); column++) {
            line.append(' ').append(columns.getColumnName(column)).append('/').append(columns.getColumnTypeName(column));
        }
        System.out.println(line);
        while (rows.next()) {
            line = new StringBuilder("    ");
            for (int column = 1; column <= columns.getColumnCount(); column++) {
                Object value = rows.getObject(column);
                line.append(' ').append(value instanceof byte[] bytes ? Arrays.toString(bytes) : value);
            }
            System.out.println(line);
        }
        rows.close();
    }

    private static void query(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int at = 0; at < values.length; at++) {
                statement.setObject(at + 1, values[at]);
            }
            show(statement.executeQuery());
        }
    }

    private static int update(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int at = 0; at < values.length; at++) {
                statement.setObject(at + 1, values[at]);
            }
            return statement.executeUpdate();
        }
    }

    private static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private void statements(Connection connection, boolean extended) throws Exception {
        title("statements");
        try (Statement statement = connection.createStatement()) {
            boolean rows = statement.execute("SELECT 1 AS one; UPDATE t SET name = 'x' WHERE false; SELECT 'two' AS two");
            while (rows || statement.getUpdateCount() != -1) {
                if (rows) {
                    show(statement.getResultSet());
                } else {
                    System.out.println("    updated " + statement.getUpdateCount());
                }
                rows = statement.getMoreResults();
            }
        }
        for (int id = 0; id < 8; id++) {
            System.out.println("  " + update(connection, "INSERT INTO t (id, name, amount) VALUES (?, ?, ?)", id, "it's " + id,
                new BigDecimal("1.50")));
        }
        // The fifth execution of one statement is prepared on the server.
        try (PreparedStatement select = connection.prepareStatement("SELECT id, name, amount FROM t WHERE id = ?")) {
            for (int round = 0; round < 8; round++) {
                select.setInt(1, round % 3);
                show(select.executeQuery());
            }
            select.setInt(1, -1);
            show(select.executeQuery());
        }
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO t (name) VALUES (?)",
                Statement.RETURN_GENERATED_KEYS)) {
            for (int round = 0; round < 3; round++) {
                insert.setString(1, "generated");
                insert.executeUpdate();
                show(insert.getGeneratedKeys());
            }
        }
        if (!extended) {
            return;
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT ?::int + 1 AS sum, name FROM t WHERE id = ?")) {
            ParameterMetaData parameters = statement.getParameterMetaData();
            System.out.println("  " + parameters.getParameterCount() + " " + parameters.getParameterTypeName(2));
            System.out.println("  " + statement.getMetaData().getColumnTypeName(2));
        }
        try (CallableStatement call = connection.prepareCall("{? = call length(?)}")) {
            call.registerOutParameter(1, java.sql.Types.INTEGER);
            call.setString(2, "four");
            call.execute();
            System.out.println("  " + call.getInt(1));
        }
    }

    private void types(Connection connection) throws Exception {
        title("types");
        Array array = connection.createArrayOf("text", new String[] {"a", "b,c", null});
        Object[] values = {1, 1L << 40, 1.5, 2.5f, true, "text", new byte[] {0, -1}, new BigDecimal("12345.678"),
            Date.valueOf("2001-02-03"), java.sql.Timestamp.valueOf("2001-02-03 04:05:06.789"), UUID.fromString("00000000-0000-0000-0000-000000000007"),
            array};
        String[] kinds = {"int", "bigint", "float8", "real", "bool", "text", "bytea", "numeric", "date", "timestamp", "uuid", "text[]"};
        for (int at = 0; at < values.length; at++) {
            for (int round = 0; round < 6; round += 5) {
                query(connection, "SELECT ?::" + kinds[at] + " AS v, NULL::" + kinds[at] + " AS n", values[at]);
            }
        }
    }

    private void batches(Connection connection) throws Exception {
        title("batches");
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO t (id, name) VALUES (?, 'batch')")) {
            for (int id = 1000; id < 1300; id++) {
                insert.setInt(1, id);
                insert.addBatch();
            }
            System.out.println("  " + insert.executeBatch().length);
        }
        try (Statement statement = connection.createStatement()) {
            statement.addBatch("UPDATE t SET name = 'changed' WHERE id BETWEEN 1000 AND 1009");
            statement.addBatch("DELETE FROM t WHERE id = 1299");
            System.out.println("  " + Arrays.toString(statement.executeBatch()));
        }
        query(connection, "SELECT name, count(*) FROM t WHERE id >= 1000 GROUP BY name ORDER BY name");
        connection.setAutoCommit(false);
        fails("batch", () -> {
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO t (id) VALUES (?)")) {
                for (int id : new int[] {2000, 1000, 2001}) {
                    insert.setInt(1, id);
                    insert.addBatch();
                }
                insert.executeBatch();
            }
        });
        connection.rollback();
        connection.setAutoCommit(true);
        query(connection, "SELECT count(*) FROM t WHERE id >= 2000");
    }

    private void cursors(Connection connection) throws Exception {
        title("rows in parts");
        connection.setAutoCommit(false);
        long sum = 0;
        int seen = 0;
        try (PreparedStatement select = connection.prepareStatement("SELECT id FROM t WHERE id >= ? ORDER BY id")) {
            select.setFetchSize(50);
            select.setInt(1, 1000);
            ResultSet rows = select.executeQuery();
            while (rows.next()) {
                sum += rows.getInt(1);
                seen++;
            }
        }
        System.out.println("  " + seen + " " + sum);
        connection.commit();
        // Rows are changed while they are read.
        try (PreparedStatement select = connection.prepareStatement("SELECT id FROM t WHERE id >= 1000 ORDER BY id");
                PreparedStatement change = connection.prepareStatement("UPDATE t SET amount = id WHERE id = ?")) {
            select.setFetchSize(50);
            ResultSet rows = select.executeQuery();
            while (rows.next()) {
                change.setInt(1, rows.getInt(1));
                change.executeUpdate();
            }
        }
        connection.commit();
        connection.setAutoCommit(true);
        query(connection, "SELECT count(*), sum(amount) FROM t WHERE id >= 1000");
        try (Statement statement = connection.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE)) {
            ResultSet rows = statement.executeQuery("SELECT id, name FROM t WHERE id < 3 ORDER BY id");
            rows.last();
            rows.updateString("name", "by the result set");
            rows.updateRow();
            System.out.println("  " + rows.getRow() + " " + rows.getString("name"));
        }
        query(connection, "SELECT id, name FROM t WHERE id < 3 ORDER BY id");
    }

    private void transactions(Connection connection) throws Exception {
        title("transactions");
        connection.setAutoCommit(false);
        update(connection, "INSERT INTO t (id) VALUES (?)", 3000);
        Savepoint savepoint = connection.setSavepoint("one");
        fails("duplicate", () -> update(connection, "INSERT INTO t (id) VALUES (?)", 3000));
        fails("after it", () -> query(connection, "SELECT 1"));
        connection.rollback(savepoint);
        savepoint = connection.setSavepoint();
        update(connection, "INSERT INTO t (id) VALUES (?)", 3001);
        connection.releaseSavepoint(savepoint);
        connection.commit();
        query(connection, "SELECT id FROM t WHERE id >= 3000 ORDER BY id");
        update(connection, "DELETE FROM t WHERE id >= 3000");
        connection.rollback();
        for (int level : new int[] {Connection.TRANSACTION_READ_COMMITTED, Connection.TRANSACTION_REPEATABLE_READ,
                Connection.TRANSACTION_SERIALIZABLE}) {
            connection.setTransactionIsolation(level);
            query(connection, "SELECT id FROM t WHERE id >= 3000 ORDER BY id");
            connection.commit();
        }
        connection.setReadOnly(true);
        fails("read only", () -> update(connection, "DELETE FROM t"));
        connection.rollback();
        connection.setReadOnly(false);
        connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
        connection.setAutoCommit(true);
        System.out.println("  " + connection.isValid(10));
    }

    private void retries() throws Exception {
        title("retries");
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE IF NOT EXISTS counter (total int); DELETE FROM counter; INSERT INTO counter VALUES (0)");
        }
        List<Thread> threads = new ArrayList<>();
        for (int worker = 0; worker < 4; worker++) {
            Thread thread = new Thread(() -> {
                try (Connection connection = connect()) {
                    connection.setAutoCommit(false);
                    connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
                    for (int done = 0; done < 25;) {
                        try (Statement statement = connection.createStatement()) {
                            ResultSet rows = statement.executeQuery("SELECT total FROM counter");
                            rows.next();
                            update(connection, "UPDATE counter SET total = ?", rows.getInt(1) + 1);
                            connection.commit();
                            done++;
                        } catch (SQLException error) {
                            connection.rollback();
                            if (!error.getSQLState().equals("40001") && !error.getSQLState().equals("40P01")) {
                                throw error;
                            }
                        }
                    }
                } catch (SQLException error) {
                    System.out.println("  worker: " + error);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        try (Connection connection = connect()) {
            query(connection, "SELECT total FROM counter");
        }
    }

    private void copies(Connection connection) throws Exception {
        title("copy");
        execute(connection, "CREATE TABLE c (id int PRIMARY KEY, name text)");
        CopyManager manager = connection.unwrap(PGConnection.class).getCopyAPI();
        StringBuilder data = new StringBuilder();
        for (int id = 0; id < 5000; id++) {
            data.append(id).append("\tname ").append(id).append('\n');
        }
        System.out.println("  " + manager.copyIn("COPY c FROM STDIN", new StringReader(data.toString())));
        StringWriter out = new StringWriter();
        System.out.println("  " + manager.copyOut("COPY c TO STDOUT (FORMAT csv)", out) + " " + out.toString().length());
        fails("copy of a key that is there", () -> manager.copyIn("COPY c FROM STDIN", new StringReader("9000\tx\n1\tx\n")));
        CopyIn given = manager.copyIn("COPY c FROM STDIN");
        byte[] line = "9000\tx\n".getBytes();
        given.writeToCopy(line, 0, line.length);
        fails("given up", given::cancelCopy);
        query(connection, "SELECT count(*), max(id) FROM c");
        connection.setAutoCommit(false);
        manager.copyIn("COPY c FROM STDIN", new StringReader("9001\tx\n"));
        query(connection, "SELECT count(*), max(id) FROM c");
        connection.rollback();
        connection.setAutoCommit(true);
        query(connection, "SELECT count(*), max(id) FROM c");
        execute(connection, "DROP TABLE c");
    }

    private void cancels(Connection connection) throws Exception {
        title("cancel");
        try (Statement statement = connection.createStatement()) {
            Thread canceller = new Thread(() -> {
                try {
                    // A request that arrives before its query cancels nothing, so it is made again until it does.
                    while (true) {
                        Thread.sleep(200);
                        statement.cancel();
                    }
                } catch (InterruptedException | SQLException end) {
                    return;
                }
            });
            canceller.start();
            fails("sleep", () -> statement.execute("SELECT pg_sleep(300)"));
            canceller.interrupt();
            canceller.join();
        }
        try (Statement statement = connection.createStatement()) {
            statement.setQueryTimeout(1);
            fails("query timeout", () -> statement.execute("SELECT pg_sleep(300)"));
        }
        query(connection, "SELECT 'still here' AS words");
    }

    private void faults(Connection connection) throws Exception {
        title("errors");
        for (String sql : new String[] {"INSERT INTO t (id) VALUES (NULL)", "INSERT INTO t (id) VALUES (1)", "SELECT * FROM nowhere",
                "SELECT nothing FROM t", "SELECT nofunction(1)", "SELEC 1", "SELECT 'x'::int", "SELECT 1 / 0",
                "DROP TABLE nowhere", "UPDATE nowhere SET a = 1", "CREATE TABLE t (id int)"}) {
            fails(sql, () -> execute(connection, sql));
            fails(sql, () -> execute(connection, sql));
        }
    }

    private void metadata(Connection connection) throws Exception {
        title("metadata");
        DatabaseMetaData data = connection.getMetaData();
        System.out.println("  " + data.getDatabaseProductName() + " " + data.getDatabaseProductVersion());
        ResultSet tables = data.getTables(null, "java", "%", new String[] {"TABLE"});
        while (tables.next()) {
            System.out.println("  " + tables.getString("TABLE_NAME"));
        }
        ResultSet columns = data.getColumns(null, "java", "t", "%");
        while (columns.next()) {
            System.out.println("  " + columns.getString("COLUMN_NAME") + " " + columns.getString("TYPE_NAME") + " "
                + columns.getString("COLUMN_DEF") + " " + columns.getString("IS_AUTOINCREMENT"));
        }
        ResultSet keys = data.getPrimaryKeys(null, "java", "t");
        while (keys.next()) {
            System.out.println("  " + keys.getString("COLUMN_NAME") + " " + keys.getString("PK_NAME"));
        }
        ResultSet indexes = data.getIndexInfo(null, "java", "t", false, false);
        while (indexes.next()) {
            System.out.println("  " + indexes.getString("INDEX_NAME") + " " + indexes.getBoolean("NON_UNIQUE"));
        }
    }

    private void run() throws Exception {
        String[][] ways = {{"preferQueryMode=extended"}, {"preferQueryMode=simple"}, {"preferQueryMode=extendedForPrepared"},
            {"preferQueryMode=extendedCacheEverything"}, {"prepareThreshold=1", "reWriteBatchedInserts=true"},
            {"prepareThreshold=-1"}, {"autosave=always"}};
        for (String[] way : ways) {
            System.out.println("==== " + String.join(" ", way));
            try (Connection connection = connect(way)) {
                execute(connection, "CREATE SCHEMA java");
                execute(connection, "CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY (START 100) PRIMARY KEY, "
                    + "name text, amount numeric(12,2))");
                statements(connection, !way[0].equals("preferQueryMode=simple"));
                types(connection);
                batches(connection);
                if (!way[0].equals("preferQueryMode=simple")) {
                    cursors(connection);
                }
                transactions(connection);
                copies(connection);
                faults(connection);
                metadata(connection);
                if (way == ways[0]) {
                    cancels(connection);
                    retries();
                }
                execute(connection, "SET client_min_messages = warning");
                execute(connection, "DROP SCHEMA java CASCADE");
            }
        }
        System.out.println("all done");
    }

    public static void main(String[] args) throws Exception {
        new Clients(args).run();
    }
}
