-- The bulletin board.
CREATE TABLE categories (
    id integer,
    name varchar(50),
    PRIMARY KEY (id)
);
CREATE TABLE users (
    id integer,
    firstname varchar(20),
    lastname varchar(20),
    nickname varchar(20),
    password varchar(20),
    email varchar(50),
    rating integer,
    access integer,
    creation_date timestamp,
    PRIMARY KEY (id)
);
CREATE INDEX ON users (nickname, password);
CREATE TABLE stories (
    id integer,
    title varchar(100),
    body text,
    date timestamp,
    writer integer,
    category integer,
    PRIMARY KEY (id)
);
CREATE INDEX ON stories (writer);
CREATE INDEX ON stories (category);
CREATE INDEX ON stories (title);
CREATE INDEX ON stories (date);
CREATE TABLE old_stories (
    id integer,
    title varchar(100),
    body text,
    date timestamp,
    writer integer,
    category integer,
    PRIMARY KEY (id)
);
CREATE INDEX ON old_stories (writer);
CREATE INDEX ON old_stories (category);
CREATE INDEX ON old_stories (title);
CREATE INDEX ON old_stories (date);
CREATE TABLE submissions (
    id integer,
    title varchar(100),
    body text,
    date timestamp,
    writer integer,
    category integer,
    PRIMARY KEY (id)
);
CREATE INDEX ON submissions (writer);
CREATE INDEX ON submissions (category);
CREATE INDEX ON submissions (title);
CREATE INDEX ON submissions (date);
CREATE TABLE comments (
    id integer,
    writer integer,
    story_id integer,
    parent integer,
    childs integer,
    rating integer,
    date timestamp,
    subject varchar(100),
    comment text,
    PRIMARY KEY (id)
);
CREATE INDEX ON comments (story_id);
CREATE INDEX ON comments (subject);
CREATE INDEX ON comments (parent);
CREATE INDEX ON comments (rating);
CREATE TABLE old_comments (
    id integer,
    writer integer,
    story_id integer,
    parent integer,
    childs integer,
    rating integer,
    date timestamp,
    subject varchar(100),
    comment text,
    PRIMARY KEY (id)
);
CREATE INDEX ON old_comments (story_id);
CREATE INDEX ON old_comments (subject);
CREATE INDEX ON old_comments (parent);
CREATE INDEX ON old_comments (rating);
CREATE TABLE moderator_log (
    id integer,
    moderator_id integer,
    comment_id integer,
    rating integer,
    date timestamp,
    PRIMARY KEY (id)
);
CREATE INDEX ON moderator_log (comment_id);
