locals {
  partition = split(":", aws_ecs_cluster.this.arn)[1]

  # Secrets Manager takes arn:...:secret:NAME-ID:KEY:STAGE:VERSION; policies want it up to the name.
  secret_arns = distinct([
    for arn in values(var.secrets) : join(":", slice(split(":", arn), 0, strcontains(arn, ":secretsmanager:") ? 7 : 6))
  ])

  model_object = startswith(var.model_url, "s3://") ? trimprefix(var.model_url, "s3://") : ""
}

# Pulls the image, reads the secrets, opens the log: what happens before the server starts.
resource "aws_iam_role" "execution" {
  name_prefix = "${var.name}-exec-"
  tags        = var.tags

  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ecs-tasks.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy_attachment" "execution" {
  role       = aws_iam_role.execution.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
}

resource "aws_iam_role_policy" "execution" {
  count = length(local.secret_arns) == 0 ? 0 : 1

  name = "secrets"
  role = aws_iam_role.execution.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["secretsmanager:GetSecretValue", "ssm:GetParameters"]
      Resource = local.secret_arns
    }]
  })
}

# Whom the server runs as.
resource "aws_iam_role" "task" {
  name_prefix = "${var.name}-task-"
  tags        = var.tags

  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ecs-tasks.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy" "task" {
  count = local.model_object == "" ? 0 : 1

  name = "model"
  role = aws_iam_role.task.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["s3:GetObject"]
      Resource = ["arn:${local.partition}:s3:::${local.model_object}"]
    }]
  })
}

# Lets an instance join the cluster.
resource "aws_iam_role" "instance" {
  name_prefix = "${var.name}-ec2-"
  tags        = var.tags

  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy_attachment" "instance" {
  role       = aws_iam_role.instance.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "instance" {
  name_prefix = "${var.name}-"
  role        = aws_iam_role.instance.name
  tags        = var.tags
}
